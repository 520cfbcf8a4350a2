"""Metrics: every name that a measurement may have, with unit and direction, and how its numbers read on a board."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from .decode import Name, Points
from .errors import SelectionError

MINUS = "−"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a measurement's name, and how a board shows it where a task is ranked by it.

    `unit`: of the stored value; `better`: which direction is good, "" where neither is. A task may be ranked by a
    metric with `points` above 0: a board multiplies values by it, so that 0.62 of accuracy reads 62 points. `margin`:
    how many points worse than the reference still count as no worse, unless a person says otherwise. `chance`: the
    value of blind guessing, where a task knows it. `title` heads a column, `question` completes "Which attention …?".
    An advantage is positive where it is better; a difference has the sign of the value itself.
    """

    name: Name
    unit: Name
    better: Literal["higher", "lower", ""]
    description: Name = ""
    points: Points = 0.0
    margin: Points = 0.0
    title: Name = ""
    question: Name = ""
    chance: float | None = None

    def __post_init__(self) -> None:
        best = "lowest" if self.better == "lower" else "highest"
        object.__setattr__(self, "title", self.title or self.name.replace("_", " "))
        object.__setattr__(self, "question", self.question or f"has the {best} {self.title}")

    def with_chance(self, chance: float | None) -> Metric:
        """The same metric for a task on which blind guessing reaches `chance`."""
        return replace(self, chance=chance)

    @property
    def display_unit(self) -> str:
        """The unit on a board: fractions are shown as percentages."""
        return "%" if self.unit == "fraction" else self.unit

    @property
    def is_share(self) -> bool:
        """True if it is a share of right examples, with the noise of coin tosses."""
        return self.name == "accuracy"

    @property
    def sign(self) -> int:
        return -1 if self.better == "lower" else 1

    @property
    def decimals(self) -> int:
        """Decimals on a board, enough to show a tenth of the margin.

        >>> METRICS["accuracy"].decimals, METRICS["bits_per_character"].decimals
        (1, 3)
        """
        return max(1 - math.floor(math.log10(self.margin)), 0)

    @property
    def of_difference(self) -> str:
        """The unit of a difference: percentage points are points."""
        return "points" if self.unit == "fraction" else self.unit

    def margin_words(self, margin: float) -> str:
        """
        >>> [METRICS[name].margin_words(m) for name, m in (("accuracy", 1.0), ("accuracy", 0.5), ("bleu", 0.5))]
        ['1 point', '0.5 points', '0.5 BLEU']
        """
        unit = "point" if self.of_difference == "points" and margin == 1 else self.of_difference
        return f"{margin:g} {unit}"

    def value(self, found: float) -> str:
        """
        >>> METRICS["accuracy"].value(0.619)
        '61.9'
        """
        return f"{self.points * found:.{self.decimals}f}"

    def level(self, found: Interval) -> str:
        """
        >>> METRICS["accuracy"].level(Interval(0.619, 0.606, 0.632))
        '61.9 ± 1.3'
        """
        if found.low == found.high:
            return self.value(found.value)
        return f"{self.value(found.value)} ± {self.value((found.high - found.low) / 2)}"

    def difference(self, advantage: Interval) -> Interval:
        """The difference in points, with the sign of the metric: fewer bits are negative, and better.

        >>> METRICS["bits_per_character"].difference(Interval(0.02, 0.01, 0.03))
        Interval(value=-0.02, low=-0.03, high=-0.01)
        """
        ends = [self.sign * self.points * end for end in (advantage.value, advantage.low, advantage.high)]
        return Interval(ends[0], min(ends[1:]), max(ends[1:]))

    def signed(self, advantage: float) -> str:
        """
        >>> accuracy, bits = METRICS["accuracy"], METRICS["bits_per_character"]
        >>> accuracy.signed(0.004), accuracy.signed(-0.0001), bits.signed(0.02)
        ('+0.4', '0.0', '−0.020')
        """
        return self._signed(self.sign * self.points * advantage)

    def gap(self, advantage: Interval) -> str:
        """
        >>> METRICS["accuracy"].gap(Interval(0.004, -0.009, 0.017))
        '+0.4 (−0.9 to +1.7)'
        """
        shown = self.difference(advantage)
        return f"{self._signed(shown.value)} ({self._signed(shown.low)} to {self._signed(shown.high)})"

    def gap_in_brief(self, advantage: Interval) -> str:
        """
        >>> METRICS["accuracy"].gap_in_brief(Interval(0.004, -0.009, 0.017))
        '+0.4 ± 1.3'
        """
        return f"{self.signed(advantage.value)} ± {self.value((advantage.high - advantage.low) / 2)}"

    def _signed(self, points: float) -> str:
        text = f"{abs(points):.{self.decimals}f}"
        return text if float(text) == 0 else (MINUS if points < 0 else "+") + text


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # quality
        Metric(
            "accuracy",
            "fraction",
            "higher",
            "share of examples classified right; `where.split` says of which split",
            points=100.0,
            margin=1.0,
            question="is right most often",
        ),
        Metric(
            "bleu",
            "BLEU",
            "higher",
            "corpus BLEU of sacrebleu; `where.signature`, `where.set`",
            points=1.0,
            margin=0.5,
            title="BLEU",
        ),
        Metric(
            "bits_per_character",
            "bits",
            "lower",
            "bits spent on predicting the test text, over its characters",
            points=1.0,
            margin=0.02,
            title="bits/character",
            question="spends the fewest bits per character",
        ),
        Metric(
            "score",
            "",
            "higher",
            "of a function that the user named; larger is better",
            points=1.0,
            margin=0.01,
        ),
        Metric("chrf", "chrF", "higher", "corpus chrF of sacrebleu; `where.signature`, `where.set`"),
        Metric("perplexity", "", "lower", "2 to the bits per token of the original text; `where.token` says which"),
        Metric(
            "alignment_error_rate",
            "fraction",
            "lower",
            "of cross attention against gold links; `where.layer`, `where.head`, `where.shift`",
        ),
        Metric("loss", "nats", "lower", "mean cross entropy per example; `where.split` says of which split"),
        Metric("best_step", "steps", "", "training step of the checkpoint that validation chose"),
        Metric("steps", "steps", "", "training steps made"),
        Metric("steps_to_90", "steps", "lower", "first evaluated step at which validation had 90 % right"),
        Metric("settled", "fraction", "higher", "1 where validation no longer improved at the end of training, else 0"),
        Metric("parameters", "count", "lower", "trainable parameters of the whole model"),
        Metric(
            "extra_parameters",
            "count",
            "lower",
            "trainable parameters that the variant adds to the shared model, less what it replaces",
        ),
        Metric("own_projections", "count", "", "trainable parameters of layers with projections of their own"),
        Metric("attention_dropout", "fraction", "", "of the weights in training, where it is not that of the preset"),
        Metric("learning_rate", "", "", "rate that was chosen from the grid of the preset"),
        Metric("query_key_scale", "", "", "factor on queries and keys at the start that was chosen from the preset's"),
        Metric("train_seconds", "seconds", "lower", "wall time of the training loop, evaluation excluded"),
        Metric(
            "data_share",
            "fraction",
            "lower",
            "share of train_seconds in which the training loop waited for its batches",
        ),
        Metric(
            "host_seconds",
            "seconds",
            "lower",
            "time that the host took to launch a training step on a GPU, without waiting for its batch; mean of all",
        ),
        Metric(
            "captured_steps",
            "fraction",
            "",
            "share of training steps that were replays of a CUDA graph; `where.reason` why not all others were",
        ),
        # cost, from interleaved rounds; samples are one per round, in the order of the rounds
        Metric("step_seconds", "seconds", "lower", "one training step: forward, backward, optimiser"),
        Metric("forward_seconds", "seconds", "lower", "one forward pass without gradients"),
        Metric("decode_seconds", "seconds", "lower", "one decoding step with cache"),
        Metric("cpu_seconds", "seconds", "lower", "process time of the same samples, over all threads"),
        Metric("reference_step_seconds", "seconds", "lower", "the reference in the same rounds"),
        Metric("reference_forward_seconds", "seconds", "lower", "the reference in the same rounds"),
        Metric("reference_decode_seconds", "seconds", "lower", "the reference in the same rounds"),
        Metric(
            "null_step_seconds", "seconds", "lower", "the reference's own code under a second name, in the same rounds"
        ),
        Metric("null_forward_seconds", "seconds", "lower", "the null control in the same rounds"),
        Metric("null_decode_seconds", "seconds", "lower", "the null control in the same rounds"),
        Metric(
            "foreign_load", "cores", "lower", "processor time used by other processes during the samples, per second"
        ),
        Metric(
            "canary_seconds",
            "seconds",
            "",
            "a fixed piece of work, once a round; `where.drift` is the share by which it slowed down",
        ),
        Metric(
            "launch_seconds",
            "seconds",
            "lower",
            "time that the host takes to launch one unit of work on a GPU, which is no part of that unit's time",
        ),
        Metric(
            "host_bound",
            "fraction",
            "lower",
            "share of samples in which the host was timed, launching, and not the GPU",
        ),
        Metric(
            "compile_seconds",
            "seconds",
            "lower",
            "time that torch.compile took before the first sample, from empty caches; no part of any other time; of "
            "`where.graphs` with `where.graph_breaks`",
        ),
        Metric(
            "energy_joules",
            "J",
            "lower",
            "energy of the whole device for one unit of what is timed, idle power included, by the counter "
            "`where.source`, over `where.units` in `where.seconds`",
        ),
        Metric(
            "gpu_clock",
            "MHz",
            "",
            "clock of the GPU's processors when the samples ended; `where.before_mhz` when they began, and both powers",
        ),
        Metric("gpu_temperature", "°C", "", "temperature of the GPU when the samples ended"),
        Metric("examples_per_second", "1/second", "higher", "examples per second of training, from the median step"),
        Metric(
            "decode_tokens_per_second",
            "1/second",
            "higher",
            "tokens put out per second of translating the test split with a beam of `where.beam`",
        ),
        Metric("tokens_per_second", "1/second", "higher", "real tokens per second of training, padding not counted"),
        Metric("padded_tokens_per_second", "1/second", "higher", "tokens per second of training, padding counted"),
        # work, by counting matrix products
        Metric("flops", "FLOP", "lower", "matrix products of one unit of work; `where.how` they were counted"),
        Metric("dense_flops", "FLOP", "", "what the two products of dense attention would need for the same"),
        Metric(
            "traffic_bytes", "bytes", "lower", "bytes that all operators read and wrote, each as if nothing were cached"
        ),
        Metric("arithmetic_intensity", "FLOP/byte", "", "flops over traffic_bytes"),
        Metric(
            "peak_share", "× peak", "higher", "flops per second over the best matrix product measured on this machine"
        ),
        Metric(
            "kernel_flops_per_second",
            "FLOP/s",
            "higher",
            "nominal FLOPs of a known kernel, or a large product, in the process of what was timed; `where` says which",
        ),
        Metric("copy_share", "× peak", "higher", "traffic per second over the best copy measured on this machine"),
        # memory
        Metric(
            "peak_bytes",
            "bytes",
            "lower",
            "peak of allocated memory over one unit of what is timed, with parameters and optimiser",
        ),
        Metric("reserved_bytes", "bytes", "lower", "peak reserved by the CUDA allocator over the same"),
        Metric(
            "longest_length",
            "tokens",
            "higher",
            "longest sequence that runs in `where.memory_bytes`; `where.stopped` by",
        ),
        Metric("state_bytes", "bytes", "lower", "decode state per sequence, all layers, at `where.length` tokens"),
        # what attention does
        Metric(
            "declared_density", "fraction", "", "share of allowed score entries that the mechanism says it computes"
        ),
        Metric(
            "sparsity",
            "fraction",
            "",
            "share of allowed weights that are exactly zero, on real validation batches or drawn inputs",
        ),
        Metric(
            "block_sparsity", "fraction", "", "share of square blocks of side `where.block` without a positive weight"
        ),
        Metric("null_rate", "fraction", "", "share of real queries whose weights are all zero"),
        Metric("entropy", "fraction", "", "entropy of the normalised weights over the logarithm of the allowed keys"),
        Metric("attention_distance", "tokens", "", "mean |i - j| under the weights"),
        Metric(
            "head_diversity",
            "nats",
            "",
            "generalised Jensen-Shannon divergence between the heads of `where.layer`, over real queries",
        ),
        Metric(
            "positional_attention",
            "fraction",
            "",
            "mean weight that a head puts at its favourite offset of `where.offsets`; the highest of the heads",
        ),
        Metric(
            "weight_on_right_key",
            "fraction",
            "",
            "mean share of its weight that an asked position puts on the key that holds its answer, on test sequences; "
            "of the one head that puts most there over all settings",
        ),
        Metric("alpha", "", "", "learned alpha of an entmax head"),
    )
}
"""Every metric by its name."""

RANKING_METRICS = tuple(metric for metric in METRICS.values() if metric.points > 0)
"""Metrics that a task may be ranked by."""

ACCURACY = METRICS["accuracy"]


def check_margin(margin: float | None) -> None:
    """Raises SelectionError for a margin, in points, that is no number of 0 or more; None is each task's own."""
    if margin is not None and not 0 <= margin < math.inf:
        raise SelectionError(f"expected a margin of 0 or more points, got {margin}")
