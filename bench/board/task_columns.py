"""Columns of a task's board: the one place to add, change or remove a displayed column."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..core.cell import REFERENCE
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..score.cost import CAPPED, floor_of
from ..score.learning import Reached
from ..score.matched_budget import advantage_at_equal_state, advantage_at_equal_time
from ..score.quality import outcome_words
from ..stats.bootstrap import DRAWS
from ..stats.format import count, duration, memory, percent, size
from ..stats.scoring import CAP, Verdict
from ..store.table import ResultTable
from .attention_tables import lowest_error
from .board import TableCell
from .cells import EMPTY, difference_cell, level_cell, mean_cell, number_cell, ratio_cell, reference_cell
from .columns import BoardColumn
from .setting_tables import FACTOR, HIGH, high_note
from .task_context import BoardContext, VariantContext

Cells = Callable[[VariantContext], TableCell]

AT_HIGH = percent(HIGH)

ANSWERS = ("learned", "gap", "verdict", "longest_high", "extrapolation", "step_time", "memory", "frontier")
"""Columns that say who is how good at which cost, beside the metric; all others are shown on request."""

SHOWN_SHARE = 0.01
"""Of the training time: from here on a board shows how long trainings waited for data."""


def task_columns(context: BoardContext) -> tuple[BoardColumn[VariantContext], ...]:
    """The columns in the order in which they are shown; a cell is a function of the variant."""
    table, metric, settings = context.table, context.metric, context.settings
    trained = [run.at for run in context.runs]
    title, better, of_difference = metric.title, metric.better, metric.of_difference
    within = f"{metric.margin_words(context.margin)} {'above' if metric.sign < 0 else 'below'} {REFERENCE}"

    def newest(name: str, words: Callable[[float], str] = count) -> Cells:
        return lambda variant: number_cell(_last(table.values(name, variant.rows)), words)

    def mean(name: str, words: Callable[[float], str] = percent, **where: object) -> Cells:
        return lambda variant: mean_cell(_of_whole_model(table, variant, name, **where), words)

    return (
        BoardColumn(name=metric.name, title=title, unit=metric.display_unit, better=better, importance=0,
                    description=f"mean test {title} over seeds, with its 95 % interval", cell=partial(_level, context)),
        BoardColumn(name="learned", title="learned", unit="seeds", better="higher", importance=1,
                    description="seeds above the best constant prediction at 95 %",
                    present=any(not all(one.learned) for one in context.contrasts.scores.values()), cell=_learned),
        BoardColumn(name="gap", title=f"vs {REFERENCE}", unit=of_difference, better=better,
                    description=f"mean difference from {REFERENCE} on the same seeds, with its 95 % interval",
                    cell=partial(_gap, context)),
        BoardColumn(name="verdict", title="verdict", importance=2, cell=partial(_verdict, context),
                    description="conclusion from that interval, given the margin",
                    footnote=f"from the 95 % interval of the difference, with a margin of {within}"),
        BoardColumn(name="learning_rate", title="rate", importance=2, cell=partial(_learning_rate, table),
                    present=bool(table.values("learning_rate", trained)),
                    description="learning rate that validation chose from the grid of the preset",
                    footnote="the best of the preset's grid by validation on seeds that no board uses; within one "
                    "standard error of it rates are ties, of which the smallest validation loss counts"),
        BoardColumn(name="steps_to_high", title=f"steps to {AT_HIGH}", short=f"to {AT_HIGH}", unit="steps",
                    better="lower", importance=4, present=_any_reached(context), cell=partial(_steps_to_high, context),
                    description=f"training steps until validation {title} is {AT_HIGH}, the mean over the seeds that "
                    "reach it",
                    footnote="at the first validation that shows it, so in steps of the validation interval; with the "
                    "number of seeds where some never reach it"),
        BoardColumn(name="seconds_to_high", title=f"seconds to {AT_HIGH}", unit="seconds", better="lower",
                    importance=6, present=_any_reached(context), cell=partial(_seconds_to_high, context),
                    description=f"seconds of training until validation {title} is {AT_HIGH}",
                    footnote="as these trainings took, without interleaved rounds: the load of the moment counts"),
        BoardColumn(name="longest_high", title=f"{AT_HIGH} up to", short=f"{AT_HIGH} to", unit="tokens",
                    better="higher", importance=2, present=settings.by_length is not None and metric.is_share,
                    description=f"longest tested length at which mean test {title} is {AT_HIGH}, and at all shorter",
                    cell=lambda v: settings.longest(v.name), footnote=high_note(settings.trained)),
        BoardColumn(name="extrapolation", title=f"change to {FACTOR}×", short=f"to {FACTOR}×", unit=of_difference,
                    better=better, importance=2, present=settings.ends is not None,
                    description=f"change of test {title} from the training length to {FACTOR} times it, with its "
                    "95 % interval over seeds",
                    cell=lambda v: settings.change(v.name), footnote=_change_words(context)),
        BoardColumn(name="step_time", title="step time", unit="× reference", better="lower",
                    description=f"time of one training step over {REFERENCE}'s in the same rounds",
                    cell=partial(_step_time, floor_of(context.timings))),
        BoardColumn(name="memory", title="peak memory", unit="× reference", better="lower", importance=3,
                    description=f"peak memory of one training step over {REFERENCE}'s",
                    cell=partial(_memory, table, context.newest_of_reference("peak_bytes"))),
        BoardColumn(name="sparsity", title="zeros", unit="fraction", importance=4, cell=mean("sparsity"),
                    description="share of allowed attention weights that are exactly zero"),
        BoardColumn(name="block_sparsity", title="zero blocks", unit="fraction", importance=5,
                    description="share of 64 × 64 blocks without a positive weight; only these can save time",
                    cell=mean("block_sparsity", block=64)),
        BoardColumn(name="null_rate", title="null", unit="fraction", importance=6, cell=mean("null_rate"),
                    description="share of queries that attend to nothing"),
        BoardColumn(name="perplexity", title="perplexity", better="lower", importance=3,
                    description="on the test text, per word of the original text, whatever the tokens are",
                    cell=lambda v: mean_cell(table.values("perplexity", v.rows, split="test"), "{:,.1f}".format)),
        BoardColumn(name="diversity", title="head diversity", unit="nats", importance=7,
                    description="generalised Jensen-Shannon divergence between the heads of a layer; 0: all alike",
                    cell=mean("head_diversity", "{:.3f}".format)),
        BoardColumn(name="alignment", title="AER", unit="fraction", better="lower", importance=6,
                    description="lowest alignment error rate of any head of cross attention, normal or shifted",
                    cell=lambda v: number_cell(lowest_error(table, v.rows), "{:.3f}".format)),
        BoardColumn(name="frontier", title="on frontier", unit="fraction", better="higher", importance=5,
                    description="share of bootstrap draws in which no other variant is both as good and as fast",
                    cell=lambda v: number_cell(context.frontier_shares.get(v.name), percent,
                                               "●" if v.name in context.frontier else ""),
                    footnote=f"share of {DRAWS} bootstrap draws (over seeds, test examples and rounds) in which no "
                    "other variant is both as good and as fast; ●: on the Pareto frontier by the values shown"),
        BoardColumn(name="equal_time", title="at equal time", unit=of_difference, better=better, importance=8,
                    description=f"validation {title} against {REFERENCE}'s within {REFERENCE}'s training time",
                    cell=partial(_equal_time, context),
                    footnote=f"best validation {title} against {REFERENCE}'s, both within {REFERENCE}'s training time. "
                    "A lower bound: faster variants are not trained longer, and slower ones stop mid-schedule. All "
                    "other columns compare equal steps"),
        BoardColumn(name="state", title="decode state", unit="bytes", better="lower", importance=8,
                    description="bytes that decoding keeps per sequence, over all layers, at the length of the task",
                    cell=lambda v: number_cell(context.state_bytes.get(v.name), size)),
        BoardColumn(name="equal_state", title="at equal state", unit=of_difference, better=better, importance=9,
                    description=f"test {title} against the best other variant with no larger decode state",
                    cell=partial(_equal_state, context),
                    footnote="against the best other variant with at most as many bytes of decode state per sequence, "
                    "at equal steps; that variant is chosen by the scores compared, which counts against this one"),
        BoardColumn(name="dividend", title="dividend", better="higher", importance=9, cell=partial(_dividend, table),
                    description="speed-up × declared density; 1: the promised saving was realised in full"),
        BoardColumn(name="parameters", title="parameters", unit="count", better="lower", importance=7,
                    description="trainable parameters of the whole model",
                    cell=partial(_parameters, table, context.newest_of_reference("parameters")),
                    footnote=f"†: over 10 % more parameters than {REFERENCE}, so not a model of the same size",
                    mark="†"),
        BoardColumn(name="examples_rate", title="examples/s", unit="1/second", better="higher", importance=10,
                    description="training examples per second", cell=newest("examples_per_second")),
        BoardColumn(name="tokens_rate", title="tokens/s", unit="1/second", better="higher", importance=8,
                    description="training tokens per second, without padding", cell=newest("tokens_per_second")),
        BoardColumn(name="padded_tokens_rate", title="padded tokens/s", unit="1/second", better="higher", importance=11,
                    description="training tokens per second, with padding", cell=newest("padded_tokens_per_second")),
        BoardColumn(name="data_share", title="waiting for data", unit="fraction", better="lower", importance=10,
                    present=any(share >= SHOWN_SHARE for share in table.values("data_share", trained)),
                    description="share of the training time in which the loop waited for its batches",
                    cell=mean("data_share", lambda share: f"{100 * share:.1f} %"),
                    footnote="as these trainings ran: the load of the moment counts"),
        BoardColumn(name="host_time", title="host/step", unit="seconds", better="lower", importance=10,
                    present=bool(table.values("host_seconds", trained)),
                    description="time that the host took to launch a training step on the GPU",
                    cell=mean("host_seconds", duration)),
        BoardColumn(name="captured_steps", title="graph steps", unit="fraction", importance=11,
                    present=bool(table.values("captured_steps", trained)),
                    description="share of training steps that were replays of a CUDA graph",
                    cell=partial(_captured_steps, table),
                    footnote="the step of a small model is captured once; where it cannot be, the Record says why"),
        BoardColumn(name="decoded_rate", title="decoded tokens/s", unit="1/second", better="higher", importance=8,
                    description=f"tokens per second put out by beam search on the test set, and over {REFERENCE}'s",
                    cell=partial(_decoded, context), warning=True,
                    footnote="each test set was translated once, without interleaved rounds: the load of the moment "
                    "counts, and on a GPU so does the compiling of kernels for each new length"),
        BoardColumn(name="seeds", title="seeds", unit="count", importance=3, description="seeds trained",
                    cell=lambda v: number_cell(len(v.scores.seeds), str) if v.scores else EMPTY),
        BoardColumn(name="implementation", title="implementation", importance=7,
                    description="code that was timed, and code that trained where that differs",
                    present=len(set(context.implementations.values())) > 1,
                    cell=lambda v: TableCell(text=context.implementations.get(v.name, ""))),
    )  # fmt: skip


def _level(context: BoardContext, variant: VariantContext) -> TableCell:
    if not variant.scores or not variant.scores.seeds:
        return EMPTY
    few = "" if len(variant.scores.seeds) >= LEAST_SEEDS else "few seeds"
    return level_cell(context.metric, context.contrasts.level_of(variant.name), note=few)


def _learned(variant: VariantContext) -> TableCell:
    if not variant.scores or not variant.scores.seeds:
        return EMPTY
    learned = sum(variant.scores.learned)
    return TableCell(text=f"{learned} of {len(variant.scores.seeds)}", value=learned)


def _change_words(context: BoardContext) -> str:
    ends = context.settings.ends
    if ends is None:
        return ""
    return (
        f"from length {ends[0]:,.0f}, the longest tested within training, to {ends[1]:,.0f}; with few seeds it is "
        "steadier than the score itself"
    )


def _learning_rate(table: ResultTable, variant: VariantContext) -> TableCell:
    found = sorted(set(table.values("learning_rate", variant.rows)))
    text = ", ".join(f"{rate:g}" for rate in found)
    # seeds at several rates can only come from several folders; none of them is the variant's
    return TableCell(text=text, value=found[0] if len(found) == 1 else None)


def _any_reached(context: BoardContext) -> bool:
    return any(found is not None for seeds in context.reached.values() for found in seeds)


def _steps_to_high(context: BoardContext, variant: VariantContext) -> TableCell:
    return _to_high(context, variant, lambda found: found.step, lambda value: f"{value:,.0f}")


def _seconds_to_high(context: BoardContext, variant: VariantContext) -> TableCell:
    return _to_high(context, variant, lambda found: found.seconds, duration)


def _to_high(
    context: BoardContext,
    variant: VariantContext,
    value: Callable[[Reached], float],
    words: Callable[[float], str],
) -> TableCell:
    seeds = context.reached.get(variant.name, ())
    values = [number for found in seeds if found is not None and math.isfinite(number := value(found))]
    if not values:
        return TableCell(text="never") if seeds and not any(seeds) else EMPTY
    cell = mean_cell(values, words)
    return cell if len(values) == len(seeds) else replace(cell, text=f"{cell.text} ({len(values)} of {len(seeds)})")


def _gap(context: BoardContext, variant: VariantContext) -> TableCell:
    metric = context.metric
    if variant.name == REFERENCE and variant.scores and variant.scores.seeds:
        return reference_cell(0.0)
    found = context.contrasts.to_reference(variant.name)
    if found is None:
        return EMPTY
    if found.has_enough_seeds:
        return difference_cell(metric, found.interval)
    return TableCell(text=metric.signed(found.advantage.value), value=metric.difference(found.interval).value)


def verdict_on(context: BoardContext, variant: VariantContext) -> Verdict | None:
    """The verdict on the variant against the reference; None where there is none to give."""
    found = context.contrasts.to_reference(variant.name)
    if found is None or not found.has_enough_seeds:
        return None
    return found.verdict(context.margin / context.metric.points)


def _verdict(context: BoardContext, variant: VariantContext) -> TableCell:
    found = verdict_on(context, variant)
    if found is None:
        return EMPTY
    margin = context.metric.margin_words(context.margin)
    contrast = context.contrasts.to_reference(variant.name)
    if found == "undecided" and contrast is not None and contrast.is_behind:
        return TableCell(text="worse by > 0", brief="worse")
    text = {"within margin": f"within {margin}", "worse": f"worse by > {margin}"}.get(found, found)
    return TableCell(text=text, brief={"within margin": "within", "worse": "worse"}.get(found, ""))


def _step_time(floor: float, variant: VariantContext) -> TableCell:
    cost = variant.cost
    if cost is None:
        return EMPTY
    if cost.outcome in CAPPED:
        failed = outcome_words(cost.outcome)
        return TableCell(text=f"{failed} (counts as {CAP:.0f}×)", brief=failed, value=CAP, note=cost.reason)
    if cost.cost is None:
        words = outcome_words(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, note=cost.reason)
    if variant.name == REFERENCE:
        return TableCell(text=f"{duration(cost.median)} a step", bare=duration(cost.median), value=1.0)
    return ratio_cell(cost.cost, "≈" if abs(cost.cost.value) <= floor else "")


def _memory(table: ResultTable, of_reference: float | None, variant: VariantContext) -> TableCell:
    own = _last(table.values("peak_bytes", variant.rows))
    if own is None or not of_reference:
        return EMPTY
    if variant.name == REFERENCE:
        return TableCell(text=size(own), value=1.0)
    return number_cell(own / of_reference, memory)


def _of_whole_model(table: ResultTable, variant: VariantContext, name: str, **where: object) -> list[float]:
    """The finite values of the whole model, one a Record: one kind of attention by itself may be the reference's."""
    found: list[float] = []
    for at in variant.rows:
        measured = [m for m in table.measurements(at).get(name, ()) if "attention" not in m.where]
        found += [m.value for m in measured if where.items() <= m.where.items() and math.isfinite(m.value)][:1]
    return found


def _equal_time(context: BoardContext, variant: VariantContext) -> TableCell:
    own, reference = variant.scores, context.scores.get(REFERENCE)
    if not own or not reference or not variant.cost or own.missing_reason or variant.name == REFERENCE:
        return EMPTY
    gap = advantage_at_equal_time(own, reference, variant.cost, context.curves)
    return difference_cell(context.metric, gap.interval()) if gap else EMPTY


def _equal_state(context: BoardContext, variant: VariantContext) -> TableCell:
    rival = advantage_at_equal_state(variant.name, context.contrasts, context.state_bytes)
    return difference_cell(context.metric, rival.contrast.interval, f" vs {rival.name}") if rival else EMPTY


def _dividend(table: ResultTable, variant: VariantContext) -> TableCell:
    density = _last(table.values("declared_density", variant.rows))
    if density is None or density >= 1 or variant.cost is None or variant.cost.cost is None:
        return EMPTY
    found = variant.cost.cost.interval()
    value, low, high = (density * math.exp(-end) for end in (found.value, found.high, found.low))
    return TableCell(text=f"{value:.2f}", value=value, low=low, high=high)


def _parameters(table: ResultTable, of_reference: float | None, variant: VariantContext) -> TableCell:
    found = _last(table.values("parameters", variant.rows))
    heavy = found is not None and of_reference and found > 1.1 * of_reference
    return number_cell(found, count, "†" if heavy else "")


def _decoded(context: BoardContext, variant: VariantContext) -> TableCell:
    reference = context.scores.get(REFERENCE)
    of_reference = reference.rows if reference and variant.name != REFERENCE else ()
    own, theirs = (context.table.values("decode_tokens_per_second", rows) for rows in (variant.rows, of_reference))
    if not own:
        return EMPTY
    rate = sum(own) / len(own)
    times = f" ({rate / (sum(theirs) / len(theirs)):.2f}×)" if theirs else ""
    return TableCell(text=count(rate) + times, value=rate)


def _captured_steps(table: ResultTable, variant: VariantContext) -> TableCell:
    measured = [m for at in variant.rows for m in table.measurements(at).get("captured_steps", ())]
    reasons = sorted({str(m.where["reason"]) for m in measured if "reason" in m.where})
    cell = mean_cell([m.value for m in measured], percent)
    return replace(cell, note="; ".join(reasons)) if reasons else cell


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
