"""Estimates of what a Cell costs where none like it has run: counted work over the rates of a machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...tasks.contract import Classification, Task
from ...variants import uncompiled
from ...variants.contract import AttentionShape, Mask, Variant
from ..core.cell import LEAST_ROUNDS, REFERENCE, Cell
from ..core.errors import AttnbenchError, PluginError, Unsupported
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..gate.case import SEQUENCE_SECONDS
from ..measure.devices import devices
from ..measure.flops import BACKWARD, VISIBLE, FlopCounter, dense_flops
from ..models.blocks import attention_shape
from ..plan.facts import recipe_facts
from ..process.ask import Reporter, Request, ask
from .executors.executor import Resources
from .workloads.sweep_point import DECODED as DECODED_TOKENS
from .workloads.sweep_point import LEAST_LIMIT, decoded

COUNTED_LENGTHS = 128, 256, 512
"""A cost that grows with the square of the length, or slower, is known from three lengths, in milliseconds."""

COUNTED_HEADS = 2


Counted = tuple[tuple[float, float, float], ...]
"""The work of one head and sequence at each of COUNTED_LENGTHS."""

Work = npt.NDArray[np.float64]
"""FLOPs of matrix products, bytes that operators read and write, and calls of operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The speed of a machine: FLOPs and bytes a second, by precision, and the seconds of a call that does nothing."""

    name: str
    float32: float
    bfloat16: float
    bytes: float
    call_seconds: float

    def seconds(self, work: Work, precision: str = "float32") -> float:
        """The time of work whose products and copies do not overlap, and which waits for each of its calls."""
        flops = self.bfloat16 if precision == "bfloat16" else self.float32
        return float(work @ [1 / flops, 1 / self.bytes, self.call_seconds])


class _Counter(FlopCounter):  # type: ignore[no-untyped-call]
    """Counts calls beside FLOPs and bytes; a view is no call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not func.is_view
        return super().__torch_dispatch__(func, types, args, kwargs)


@dataclass(frozen=True, slots=True)
class CountWork(Request[Counted | None]):
    """The work of one forward and backward pass of a variant, of one sequence and one head, at COUNTED_LENGTHS.

    `fills`: of filling the state of its decoding. None of a variant that cannot run here, such as a kernel of a GPU.
    """

    variant: Spec
    shape: AttentionShape
    fills: bool = False

    def answer(self, reporter: Reporter) -> Counted | None:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self._counted(COUNTED_LENGTHS[0])  # makes what is kept for the later ones, such as a traced map
                return tuple(self._counted(length) for length in COUNTED_LENGTHS)
        except (AttnbenchError, RuntimeError, ValueError, TypeError, NotImplementedError):
            # what the gate says of it comes with its Record
            return None

    def _counted(self, length: int) -> tuple[float, float, float]:
        shape = replace(self.shape, max_length=length)
        heads = shape.heads
        variant: Variant = VARIANTS.build(self.variant, shape)
        query, key, value = (torch.randn(1, heads, length, shape.head_dim, requires_grad=True) for _ in range(3))
        hidden = [torch.randn(1, length, shape.hidden_width, requires_grad=True)] if variant.takes_hidden else []
        # a plan compiles nothing: on a fresh machine that takes a minute
        with uncompiled(), _Counter() as count:
            # with a shape that it refuses a variant ends in an assertion, or not at all
            if refused := variant.supports(shape):
                raise Unsupported(refused)
            if self.fills:
                decoded(variant.eval(), (query, key, value), next(iter(hidden), None), range(length), fills=True)
                return count.flops / heads, count.traffic_bytes / heads, count.calls
            variant.train()(query, key, value, Mask(causal=shape.causal), *hidden).sum().backward()  # type: ignore[no-untyped-call]
        flops = count.flops
        if variant.implementation not in VISIBLE:
            flops = max(flops, dense_flops([shape], 1, "step", variant.density(shape) or 1.0))
        return flops / heads, count.traffic_bytes / heads, count.calls


def at_length(counted: Counted, length: int) -> Work:
    """The work at a length, by the parabola through the lengths that were counted; no less than the shortest of them.

    Between and below them, and of code that cuts a sequence into blocks, it is roughly right.
    """
    found: Any = np.polyval(np.polyfit(COUNTED_LENGTHS, np.array(counted), 2), length)
    least: Work = np.maximum(found, np.array(counted[0]) * min(1.0, length / COUNTED_LENGTHS[0]) ** 2)
    return least


SHELL_BYTES = 50.0
"""Bytes of a token, a layer and a unit of width that a step reads and writes outside of attention, in float32."""

SHELL_CALLS = 160
"""Operators of a layer outside of attention in a training step, its part of the optimiser among them."""

FIXED_CALLS = 150
"""Operators of a step outside of all layers."""

SENTENCE, DECODED, BEAMS = 30, 60, 4
"""Tokens of a sentence; passes of the decoder for a translation, and what it follows at once."""

START_SECONDS = 4.0
"""The gate and the reading of data, before a training."""

TIMING_START, GATE_SECONDS, OTHER_PASSES, LEAST_SAMPLE, USUAL_ROUNDS = 2.0, 0.3, 14, 0.015, 110
"""The parts of a timing: its start; the gate of a variant at few positions; its passes outside of the rounds (gate,
warm-up, memory); seconds of a sample of short work, which is repeated; rounds until an interval is narrow enough.
Fitted to the committed Records of 42 timings, of which 39 lie within a factor of 2."""

UNSAID_EXAMPLES = 2000
"""Examples of a split of which a recipe takes all."""

PROCESSOR = "processor"
"""The name of this machine where nothing but its processor is estimated for."""

CORE = Rates(name=PROCESSOR, float32=5.5e10, bfloat16=5.5e10, bytes=2.5e10, call_seconds=2.7e-6)
"""The rates of one core, fitted with SHELL_BYTES to Records of two processors, with AVX-512 and without."""

SHARED = 0.8
"""n cores have n to this power times the rates of one."""

FLOPS_SHARE, BYTES_SHARE, LAUNCH_SECONDS = 0.4, 0.7, 6e-6
"""The shares of a card's peaks that a training reaches, and the time of a call. Not held against a GPU."""

USUAL_CARDS = ("h100", "a100", "rtx-4090")
"""The cards that a plan estimates for where it is asked for a GPU, and not for one of them."""


def rates_of(card: str) -> Rates:
    """The rates of a card of `measure/devices.toml`."""
    device = devices()[card]
    return Rates(
        name=device.card, float32=FLOPS_SHARE * device.float32, bfloat16=FLOPS_SHARE * device.bfloat16,
        bytes=BYTES_SHARE * device.bytes_per_second, call_seconds=LAUNCH_SECONDS,
    )  # fmt: skip


def machines(kind: str, threads: int, card: str = "") -> tuple[Rates, ...]:
    """The machines that a plan estimates for, by the kind of its device; `card`: the one that was asked for."""
    if kind == "cuda":
        return tuple(map(rates_of, [card] if card else USUAL_CARDS))
    many = max(threads, 1) ** SHARED
    return (replace(CORE, float32=CORE.float32 * many, bfloat16=CORE.bfloat16 * many, bytes=CORE.bytes * many),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """`shape`: of the attention of a layer. `towers`: passes of the layers for a sequence. `outputs`: of each token."""

    shape: AttentionShape
    towers: float
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeModel(Request[ModelFacts]):
    """The model of a task under a preset, as far as its cost depends on it."""

    task: Spec
    preset: Spec

    def answer(self, reporter: Reporter) -> ModelFacts:
        task: Task = TASKS.build(self.task)
        problem, recipe = task.problem(), task.recipe(self.preset)
        # a problem has the largest vocabulary that its subwords may have, and a recipe says how many it learns
        outputs = getattr(recipe, "vocabulary", 0) or getattr(problem, "vocabulary", 0) or 0
        return ModelFacts(
            shape=attention_shape(problem, recipe, 0, "cpu"),
            towers=getattr(problem, "towers", 1),
            outputs=0 if isinstance(problem, Classification) else outputs,
        )


@dataclass(frozen=True, slots=True)
class Estimator:
    """Seconds of a cell by machine, for resources that need not be here; `planner.plan` asks it.

    `card`: the one of `measure/devices.toml` that was asked for; empty for the usual ones.
    """

    resources: Resources
    card: str = ""

    def __call__(self, cell: Cell, variants: Sequence[Spec]) -> Mapping[str, float]:
        """Empty where the work of the cell cannot be counted; `variants`: those that share a timing."""
        if cell.lane == "baseline":
            return {}
        try:
            model = ask(TASKS, cell.task.name, DescribeModel(task=cell.task, preset=cell.preset))
            setting = recipe_facts(cell.task, cell.preset).setting
        except PluginError:
            return {}
        if "tokens" in setting:
            setting = {**setting, "length": SENTENCE, "batch": setting["tokens"] / SENTENCE}
        decodes = setting.get("mode") == "decode"
        # some variants look back only
        shape = AttentionShape(heads=COUNTED_HEADS, head_dim=model.shape.head_dim,
                               causal=model.shape.causal or decodes, max_length=COUNTED_LENGTHS[-1])  # fmt: skip
        kinds = (False, True) if decodes else (False,)
        counted: dict[Spec, tuple[Counted, ...]] = {}
        for spec in variants if cell.lane == "time" else [cell.variant]:
            with suppress(PluginError):
                found = [ask(VARIANTS, spec.name, CountWork(spec, shape, fills)) for fills in kinds]
                if all(found):
                    counted[spec] = tuple(each for each in found if each)
        if cell.variant not in counted:
            return {}
        if cell.lane == "time":
            known = machines(self.resources.device.type, self.resources.time_threads, self.card)
            return {each.name: block_seconds(setting, model, counted, each) / len(counted) for each in known}
        known = machines(self.resources.device.type, self.resources.train_threads, self.card)
        return {each.name: training_seconds(setting, model, counted[cell.variant][0], each) for each in known}


def block_seconds(
    setting: Mapping[str, Any], model: ModelFacts, counted: Mapping[Spec, Sequence[Counted]], rates: Rates
) -> float:
    """The seconds of a timing: gates, fills, rounds and more. `counted`: a pass and, if it decodes, filling a state."""
    limit = max(setting["timing_seconds"], LEAST_LIMIT) if "level" in setting else math.inf
    decodes = setting.get("mode") == "decode"
    total, units, samples = TIMING_START + GATE_SECONDS * len(counted), [], []
    for spec, found in counted.items():
        fill, unit = _timed_unit(setting, model, found[-1], rates)
        total += fill + (_gate_seconds(setting, found[0], rates) if decodes else 0.0)
        if unit > limit:
            total += 2 * unit  # it leaves with the outcome `timeout`
            continue
        units.append(unit)
        # the null control is the reference once more; a sample that begins with a filled state is not repeated
        samples += [unit if decodes else max(unit, LEAST_SAMPLE)] * (2 if spec.name == REFERENCE else 1)
    rounds = max(LEAST_ROUNDS, min(setting["timing_seconds"] / sum(samples), USUAL_ROUNDS)) if samples else 0
    return float(total + OTHER_PASSES * sum(units) + rounds * sum(samples))


def _gate_seconds(setting: Mapping[str, Any], counted: Counted, rates: Rates) -> float:
    """Forward passes of one sequence by the gate: 8 with one head where all of them take long, 2 with all heads."""
    forward = at_length(counted, setting["length"]) / (1 + BACKWARD)
    whole = rates.seconds(forward * [setting["heads"], setting["heads"], 1])
    affordable = whole if whole <= SEQUENCE_SECONDS else rates.seconds(forward)
    return 8 * affordable + 2 * whole


def _timed_unit(setting: Mapping[str, Any], model: ModelFacts, counted: Counted, rates: Rates) -> tuple[float, float]:
    """The seconds of filling a state, 0 where none is, and of what one sample times."""
    level, mode = setting.get("level"), setting.get("mode", "step")
    length, batch = setting["length"], setting["batch"]
    heads = batch * setting["heads"]
    if level == "attention":
        work: Work = at_length(counted, length) * [heads, heads, 1]
    else:
        layers = 1 if level in ("layer", "block") else setting["layers"]
        hidden = 0 if level == "layer" else setting["feed_forward"]
        work = _step_work({**setting, "layers": layers, "feed_forward": hidden}, model, counted, batch, length)
    seconds = rates.seconds(work, setting["precision"])
    if mode == "decode":
        return seconds, seconds * DECODED_TOKENS / length
    return 0.0, seconds / (1 + BACKWARD) if mode == "forward" else seconds


def training_seconds(setting: Mapping[str, Any], model: ModelFacts, counted: Counted, rates: Rates) -> float:
    """The seconds of a training with its evaluations; `setting`: its recipe's values."""

    def work_of(sequences: float, tokens: int) -> Work:
        return _step_work(setting, model, counted, sequences, tokens)

    def passes(examples: float, tokens: int, batch: float) -> float:
        return rates.seconds(work_of(batch, tokens), precision) / (1 + BACKWARD) * math.ceil(examples / batch)

    precision = setting["precision"]
    length, batch, at_once = setting["length"], setting["batch"], setting["evaluate_batch"]
    validated, tested = (setting[f"{name}_examples"] or UNSAID_EXAMPLES for name in ("validation", "test"))
    step = rates.seconds(work_of(batch, length), precision) * setting.get("accumulate", 1)
    total = START_SECONDS + setting["steps"] * step
    total += setting["steps"] // setting["evaluate_every"] * passes(validated, length, at_once)
    lengths = [length]
    if "stride" in setting and setting["longest"]:
        total += passes(tested, setting["longest"], max(1.0, at_once * length / setting["longest"]))
    elif "longest" in setting and "stride" not in setting:
        # every doubling is tested, of longer sequences fewer at once
        doublings = range(int(math.log2(setting["longest"] / setting["shortest"])) + 1)
        lengths = [setting["shortest"] * 2**power for power in doublings]
    for each in lengths:
        total += passes(tested / len(lengths), each, max(1.0, at_once * length / max(each, length)))
    if "beam" in setting:
        # each pass reads one more token of every beam, since keys and values are kept
        total += passes(tested * BEAMS, 1, at_once * BEAMS) * DECODED
    return float(total)


def _step_work(setting: Mapping[str, Any], model: ModelFacts, counted: Counted, sequences: float, tokens: int) -> Work:
    """A training step of `sequences` of `tokens` each: the matrix products of all layers, and what was counted."""
    width, hidden, layers = setting["width"], setting["feed_forward"], setting["layers"] * model.towers
    flops = layers * 2.0 * (4 * width**2 + 2 * width * hidden) + 2.0 * width * model.outputs
    moved = layers * (width + hidden) * SHELL_BYTES + 16.0 * model.outputs
    shell = np.array([flops * (1 + BACKWARD) * sequences * tokens, moved * sequences * tokens, FIXED_CALLS])
    heads = sequences * setting["heads"]
    whole: Work = shell + layers * (at_length(counted, tokens) * [heads, heads, 1] + [0, 0, SHELL_CALLS])
    return whole
