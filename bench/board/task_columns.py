"""Columns of a task's board: the one place to add, change or remove a displayed column."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter

from ..core.cell import LEAST_SEEDS, REFERENCE
from ..core.record import Outcome
from ..score.cost import CAPPED, floor_of
from ..score.learning import Reached
from ..score.pareto import advantage_at_equal_state, advantage_at_equal_time
from ..score.quality import describe_outcome
from ..stats.bootstrap import DRAWS
from ..stats.format import count, duration, memory, percent, size
from ..stats.scoring import CAP, Verdict
from .board import Column, TableCell
from .cells import (
    EMPTY,
    Cell,
    contrast_cell,
    difference_cell,
    level_cell,
    mean_cell,
    number_cell,
    ratio_cell,
    reference_cell,
    share_cell,
    when,
)
from .setting_tables import FACTOR, HIGH
from .task_context import BoardContext
from .timings import RAN_AS, ran_as

AT_HIGH = percent(HIGH)

LEARNED = (
    "at seeds above the best trivial predictor and at least halfway from the best constant prediction to a perfect "
    "score, or, where nobody knows what a model can reach, to the variant's best seed"
)

ANSWERS = (
    *("learned", "all_seeds", "gap", "verdict", "longest_high", "extrapolation", "step_time", "memory", "frontier"),
    "implementation",
)
"""Columns that say who is how good at which cost, beside the metric; all others are shown on request."""

OF_THE_MOMENT = "as these trainings ran, without interleaved rounds: the load of the moment counts"

OF_TRAININGS = ("seconds_to_high", "data_share", "host_time", "decoded_rate")
"""Columns of how fast trainings ran. A board whose trainings ran on several machines has none of them."""

SHOWN_SHARE = 0.01
"""The share of the training time from which on a board shows how long trainings waited for data."""


def task_columns(context: BoardContext) -> list[tuple[Column, Cell]]:
    """The columns in the order in which they are shown, each with the function from a variant's name to its cell."""
    table, metric, settings = context.table, context.metric, context.settings
    trained = [run.at for run in context.runs]
    title, better, of_difference = metric.title, metric.better, metric.of_difference
    within = f"{metric.margin_words(context.margin)} {'above' if metric.sign < 0 else 'below'} {REFERENCE}"
    ends = settings.ends or (0.0, 0.0)
    any_unlearned = any(not all(one.learned) for one in context.contrasts.scores.values())
    failed = any(one.learned_in_part for one in context.contrasts.scores.values())
    any_reached = any(reached is not None for seeds in context.reached.values() for reached in seeds)
    waited = any(share >= SHOWN_SHARE for share in table.values("data_share", trained))

    def newest(name: str, words: Callable[[float], str] = count) -> Cell:
        return lambda variant: number_cell(_last(table.values(name, context.rows_of(variant))), words)

    def mean(name: str, words: Callable[[float], str] = percent, **where: object) -> Cell:
        # not those of one kind of attention among several
        return lambda variant: mean_cell(table.values(name, context.rows_of(variant), attention=None, **where), words)

    columns: list[tuple[Column, Cell]] = [
        (Column(name=metric.name, title=title, unit=metric.display_unit, better=better, importance=0,
                description=f"mean test {title} over the seeds that learned, or over all where none did, with its 95 % "
                "interval"),
         partial(_level, context)),
        *when(any_unlearned,
            Column(name="learned", title="learned", unit="seeds", better="higher",
                   description="seeds that learned, with the exact 95 % interval of the share of seeds that learn",
                   note=LEARNED),
            lambda name: share_cell(context.contrasts.share_of(name)) if context.seeds_of(name) else EMPTY),
        *when(failed,
            Column(name="all_seeds", title="all seeds", unit=metric.display_unit, better=better, importance=2,
                   description=f"mean test {title} over all seeds, whether they learned or not",
                   note="a variant cannot rank above another that has a better mean over all seeds"),
            partial(_over_all_seeds, context)),
        (Column(name="gap", title=f"vs {REFERENCE}", unit=of_difference, better=better,
                description=f"mean difference from {REFERENCE} at seeds where both learned, with its 95 % interval",
                note="without an interval it is of all seeds: one of the two learned at none, so only how many "
                "trainings learned is tested"),
         partial(_gap, context)),
        (Column(name="verdict", title="verdict", importance=2,
                description=f"conclusion from that interval, with a margin of {within}"),
         partial(_verdict, context)),
        (Column(name="learning_rate", title="rate", importance=2,
                description="learning rate that validation chose from the grid of the preset",
                note="best of the grid by validation on seeds that no board uses; within one standard error of it, the "
                "smallest loss counts"),
         partial(_learning_rate, context)),
        *when(any_reached,
            Column(name="steps_to_high", title=f"steps to {AT_HIGH}", short=f"to {AT_HIGH}", unit="steps",
                   better="lower", importance=4,
                   description=f"training steps until validation {title} is {AT_HIGH}, the mean over the seeds that "
                   "reach it",
                   note="in steps of the validation interval; with the number of seeds where some never reach it"),
            partial(_to_high, context, attrgetter("step"), "{:,.0f}".format)),
        *when(any_reached,
            Column(name="seconds_to_high", title=f"seconds to {AT_HIGH}", unit="seconds", better="lower", importance=6,
                   description=f"seconds of training until validation {title} is {AT_HIGH}", note=OF_THE_MOMENT),
            partial(_to_high, context, attrgetter("seconds"), duration)),
        *when(metric.is_share,
            Column(name="longest_high", title=f"{AT_HIGH} up to", short=f"{AT_HIGH} to", unit="tokens",
                   better="higher", importance=2,
                   description=f"longest tested length at which mean test {title} is {AT_HIGH}, and at all shorter",
                   note="with its multiple of the training length; +: no longer length was tested"),
            settings.longest),
        (Column(name="extrapolation", title=f"change to {FACTOR}×", short=f"to {FACTOR}×", unit=of_difference,
                better=better, importance=2,
                description=f"change of test {title} from the training length to {FACTOR} times it, with its 95 % "
                "interval over seeds",
                note=f"from length {ends[0]:,.0f}, the longest tested within training, to {ends[1]:,.0f}"),
         settings.change),
        (Column(name="step_time", title="step time", unit="× reference", better="lower",
                description=f"time of one training step over {REFERENCE}'s in the same rounds"),
         partial(_step_time, context, floor_of(context.timings))),
        (Column(name="memory", title="peak memory", unit="× reference", better="lower", importance=3,
                description=f"peak memory of one training step over {REFERENCE}'s"),
         partial(_memory, context, context.newest_of_reference("peak_bytes"))),
        (Column(name="sparsity", title="zeros", unit="fraction", importance=4,
                description="share of allowed attention weights that are exactly zero"),
         mean("sparsity")),
        (Column(name="block_sparsity", title="zero blocks", unit="fraction", importance=5,
                description="share of 64 × 64 blocks without a positive weight; a kernel that works on tiles can skip "
                "these alone"),
         mean("block_sparsity", block=64)),
        (Column(name="null_rate", title="null", unit="fraction", importance=6,
                description="share of queries that attend to nothing"),
         mean("null_rate")),
        (Column(name="perplexity", title="perplexity", better="lower", importance=3,
                description="on the test text, per word of the original text, whatever the tokens are"),
         mean("perplexity", "{:,.1f}".format, split="test")),
        (Column(name="diversity", title="head diversity", unit="nats", importance=7,
                description="generalised Jensen-Shannon divergence between the heads of a layer; 0: all alike"),
         mean("head_diversity", "{:.3f}".format)),
        (Column(name="frontier", title="on frontier", unit="fraction", better="higher", importance=5,
                description=f"share of {DRAWS} bootstrap draws in which no other variant is both as good and as fast",
                note="draws are over seeds, test examples and rounds; ●: on the Pareto frontier by the values shown"),
         lambda name: number_cell(
             context.frontier_shares.get(name), percent, "●" if name in context.frontier else "")),
        (Column(name="equal_time", title="at equal time", unit=of_difference, better=better, importance=8,
                description=f"best validation {title} against {REFERENCE}'s, both within {REFERENCE}'s training time",
                note="a lower bound: faster variants are not trained longer, and slower variants stop mid-schedule; "
                "all other columns compare equal steps"),
         partial(_equal_time, context)),
        (Column(name="state", title="decode state", unit="bytes", better="lower", importance=8,
                description="bytes that decoding keeps per sequence, over all layers, at the length of the task"),
         lambda name: number_cell(context.state_bytes.get(name), size)),
        (Column(name="equal_state", title="at equal state", unit=of_difference, better=better, importance=9,
                description=f"test {title} against the best other variant with no larger decode state per sequence",
                note="at equal steps; that variant is chosen by the scores compared, which counts against this one"),
         partial(_equal_state, context)),
        (Column(name="dividend", title="dividend", better="higher", importance=9,
                description="speed-up × declared density; 1: the promised saving was realised in full"),
         partial(_dividend, context)),
        (Column(name="parameters", title="parameters", unit="count", better="lower", importance=7,
                description="trainable parameters of the whole model", mark="†",
                note=f"†: over 10 % more parameters than {REFERENCE}, so not a model of the same size"),
         partial(_parameters, context, context.newest_of_reference("parameters"))),
        (Column(name="examples_rate", title="examples/s", unit="1/second", better="higher", importance=10,
                description="training examples per second"),
         newest("examples_per_second")),
        (Column(name="tokens_rate", title="tokens/s", unit="1/second", better="higher", importance=8,
                description="training tokens per second, without padding"),
         newest("tokens_per_second")),
        (Column(name="padded_tokens_rate", title="padded tokens/s", unit="1/second", better="higher", importance=11,
                description="training tokens per second, with padding"),
         newest("padded_tokens_per_second")),
        *when(waited,
            Column(name="data_share", title="waiting for data", unit="fraction", better="lower", importance=10,
                   description="share of the training time in which the loop waited for its batches",
                   note=OF_THE_MOMENT),
            mean("data_share", lambda share: f"{100 * share:.1f} %")),
        (Column(name="host_time", title="host/step", unit="seconds", better="lower", importance=10,
                description="time that the host took to launch a training step on the GPU"),
         mean("host_seconds", duration)),
        (Column(name="captured_steps", title="graph steps", unit="fraction", importance=11,
                description="share of training steps that were replays of a CUDA graph",
                note="the step of a small model is captured once; where it cannot be, the Record says why"),
         partial(_captured_steps, context)),
        (Column(name="decoded_rate", title="decoded tokens/s", unit="1/second", better="higher", importance=8,
                description=f"tokens per second put out by beam search on the test set, and over {REFERENCE}'s",
                note=f"{OF_THE_MOMENT}; on a GPU so does the compiling of kernels for each new length"),
         partial(_decoded, context)),
        (Column(name="seeds", title="seeds", unit="count", importance=3, description="seeds trained"),
         lambda name: number_cell(len(context.seeds_of(name)), str) if name in context.contrasts.scores else EMPTY),
        *when(bool(context.timings),
            Column(name="implementation", title="ran as", importance=4,
                   description=f"{RAN_AS}; and the code that trained, where it is another"),
            lambda name: TableCell(text=ran_as(context.implementations.get(name, ""), _density(context, name)))),
    ]  # fmt: skip
    one_machine = len(context.trained_on) < 2
    return [(column, cell) for column, cell in columns if one_machine or column.name not in OF_TRAININGS]


def _level(context: BoardContext, name: str) -> TableCell:
    seeds = context.seeds_of(name)
    if not seeds:
        return EMPTY
    few = "" if len(seeds) >= LEAST_SEEDS else "few seeds"
    return level_cell(context.metric, context.contrasts.level_of(name), note=few)


def _over_all_seeds(context: BoardContext, name: str) -> TableCell:
    own = context.contrasts.scores.get(name)
    if own is None or not own.seeds:
        return EMPTY
    return TableCell(text=context.metric.value(own.mean), value=context.metric.points * own.mean)


def _learning_rate(context: BoardContext, name: str) -> TableCell:
    found = sorted(set(context.table.values("learning_rate", context.rows_of(name))))
    text = ", ".join(f"{rate:g}" for rate in found)
    # seeds at several rates can only come from several folders; none of them is the variant's
    return TableCell(text=text, value=found[0] if len(found) == 1 else None)


def _to_high(
    context: BoardContext, value: Callable[[Reached], float], words: Callable[[float], str], name: str
) -> TableCell:
    seeds = context.reached.get(name, ())
    values = [number for found in seeds if found is not None and math.isfinite(number := value(found))]
    if not values:
        return TableCell(text="never") if seeds and not any(seeds) else EMPTY
    cell = mean_cell(values, words)
    return cell if len(values) == len(seeds) else replace(cell, text=f"{cell.text} ({len(values)} of {len(seeds)})")


def _gap(context: BoardContext, name: str) -> TableCell:
    metric = context.metric
    if name == REFERENCE and context.seeds_of(name):
        return reference_cell(0.0)
    found = context.contrasts.to_reference(name)
    if found is None:
        return EMPTY
    if found.has_enough_seeds:
        return contrast_cell(found)
    return TableCell(text=metric.signed(found.advantage.value), value=metric.difference(found.interval).value)


def verdict_on(context: BoardContext, name: str) -> Verdict | None:
    """The verdict on the variant against the reference; None where there is none to give."""
    found = context.contrasts.to_reference(name)
    if found is None or not found.has_enough_seeds or context.contrasts.scores[name].unestablished:
        return None
    return found.verdict(context.margin / context.metric.points)


def _verdict(context: BoardContext, name: str) -> TableCell:
    found = verdict_on(context, name)
    if found is None:
        return EMPTY
    margin = context.metric.margin_words(context.margin)
    contrast = context.contrasts.to_reference(name)
    if found == "undecided" and contrast is not None and contrast.is_behind:
        return TableCell(text="worse by > 0", brief="worse")
    if found == "undecided" and context.contrasts.scores[name].unsettled:
        return TableCell(text="not settled")
    text = {"within margin": f"within {margin}", "worse": f"worse by > {margin}"}.get(found, found)
    return TableCell(text=text, brief={"within margin": "within", "worse": "worse"}.get(found, ""))


def _step_time(context: BoardContext, floor: float, name: str) -> TableCell:
    cost = context.timings.get(name)
    if cost is None:
        return EMPTY
    if cost.outcome in CAPPED:
        failed = describe_outcome(cost.outcome)
        return TableCell(text=f"{failed} (counts as {CAP:.0f}×)", brief=failed, value=CAP, note=cost.reason)
    if cost.cost is None:
        words = describe_outcome(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, note=cost.reason)
    if name == REFERENCE:
        return TableCell(text=f"{duration(cost.median)} a step", bare=duration(cost.median), value=1.0)
    return ratio_cell(cost.cost, "≈" if abs(cost.cost.value) <= floor else "")


def _memory(context: BoardContext, of_reference: float | None, name: str) -> TableCell:
    own = _last(context.table.values("peak_bytes", context.rows_of(name)))
    if own is None or not of_reference:
        return EMPTY
    if name == REFERENCE:
        return TableCell(text=size(own), value=1.0)
    return number_cell(own / of_reference, memory)


def _equal_time(context: BoardContext, name: str) -> TableCell:
    own, reference = context.contrasts.scores.get(name), context.scores.get(REFERENCE)
    cost = context.timings.get(name)
    if not own or not reference or not cost or own.missing_reason or name == REFERENCE:
        return EMPTY
    gap = advantage_at_equal_time(own, reference, cost, context.curves)
    return difference_cell(context.metric, gap.interval()) if gap else EMPTY


def _equal_state(context: BoardContext, name: str) -> TableCell:
    rival = advantage_at_equal_state(name, context.contrasts, context.state_bytes)
    return contrast_cell(rival.contrast, f" vs {rival.name}") if rival else EMPTY


def _density(context: BoardContext, name: str) -> float | None:
    return _last(context.table.values("declared_density", context.rows_of(name)))


def _dividend(context: BoardContext, name: str) -> TableCell:
    density = _density(context, name)
    cost = context.timings.get(name)
    if density is None or density >= 1 or cost is None or cost.cost is None:
        return EMPTY
    found = cost.cost.interval()
    value, low, high = (density * math.exp(-end) for end in (found.value, found.high, found.low))
    return TableCell(text=f"{value:.2f}", value=value, low=low, high=high)


def _parameters(context: BoardContext, of_reference: float | None, name: str) -> TableCell:
    found = _last(context.table.values("parameters", context.rows_of(name)))
    heavy = found is not None and of_reference and found > 1.1 * of_reference
    return number_cell(found, count, "†" if heavy else "")


def _decoded(context: BoardContext, name: str) -> TableCell:
    reference = context.scores.get(REFERENCE)
    of_reference = reference.rows if reference and name != REFERENCE else ()
    rates = partial(context.table.values, "decode_tokens_per_second")
    own, theirs = rates(context.rows_of(name)), rates(of_reference)
    if not own:
        return EMPTY
    rate = sum(own) / len(own)
    times = f" ({rate / (sum(theirs) / len(theirs)):.2f}×)" if theirs else ""
    return TableCell(text=count(rate) + times, value=rate)


def _captured_steps(context: BoardContext, name: str) -> TableCell:
    measured = [m for at in context.rows_of(name) for m in context.table.named("captured_steps", at)]
    reasons = sorted({str(m.where["reason"]) for m in measured if "reason" in m.where})
    cell = mean_cell([m.value for m in measured], percent)
    return replace(cell, note="; ".join(reasons)) if reasons else cell


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
