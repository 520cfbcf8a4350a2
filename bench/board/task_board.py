"""The board of one task: ranks by the score that the task is judged by, with what it costs beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..score.baselines import trivial_levels
from ..score.cost import CAPPED, RelativeCost, costs_by_variant
from ..score.key import BoardKey
from ..score.matched_budget import Curves
from ..score.pairwise import pairwise_differences
from ..score.quality import Predictions, SeedScores, metric_of, outcome_words, scores_by_variant
from ..stats import format as wording
from ..stats.ranking import standings
from ..stats.scoring import CAP, ratio, verdict
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .attention_tables import boards_of_attentions, footnotes_of_attentions, lowest_error
from .board import Board, Footnote, Row, TableCell, in_order
from .footnotes import footnotes, footnotes_of_trivial
from .task_columns import columns
from .task_context import BoardContext
from .test_sets import SetStatistics, boards_of_sets, footnotes_of_sets, judged_by_set

Rows = Sequence[int]
"""Of the Frame."""


def board_for_task(
    table: ResultTable,
    board_key: BoardKey,
    *,
    predictions: Predictions = lambda name: None,
    curves: Curves = lambda name: None,
    sets: SetStatistics = lambda name: {},
    margin: float | None = None,
) -> Board:
    """Ranks by the task's yardstick with cost beside it; below, what each test set and each kind of attention says.

    `margin`: how many points worse than the reference still count as no worse, None for the yardstick's own.
    """
    metric = metric_of(table, board_key)
    scores = scores_by_variant(table, board_key, predictions)
    timings = costs_by_variant(table, board_key)
    context = BoardContext.of(table, board_key, metric, scores, timings, curves, margin)
    rows = {
        name: _row(name, table, scores.get(name), timings.get(name), context) for name in sorted({*scores, *timings})
    }
    able = {name: t for name, t in scores.items() if not t.missing_reason and context.setting.get("ranked", True)}
    order = standings(list(able), pairwise_differences(able)) if len(able) > 1 else []
    by_set = judged_by_set(table, board_key, metric, sets)
    attentions = boards_of_attentions(table, board_key) if by_set else []
    trivial = list(trivial_levels(table, board_key, metric, predictions))
    return Board(
        name=board_key.name,
        title=f"{board_key.task}, preset {board_key.preset}",
        question=f"Which attention {metric.question} on {board_key.task}, and what does it cost against {REFERENCE}?",
        columns=columns(metric),
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        baselines=tuple(_baselines(trivial, metric)),
        footnotes=(
            *footnotes(context),
            *footnotes_of_trivial(trivial, scores, metric),
            *_marks(rows),
            *_of_decoding(rows, [column.name for column in columns(metric)].index("decoded_rate")),
            *footnotes_of_sets(by_set),
            *footnotes_of_attentions(attentions),
        ),
        parts=(*boards_of_sets(board_key, metric, by_set), *attentions),
    )


def _marks(rows: dict[str, Row]) -> tuple[Footnote, ...]:
    if any(entry.note == "†" for row in rows.values() for entry in row.entries):
        text = f"over 10 % more parameters than {REFERENCE}: not a model of the same size"
        return (Footnote(topic="†", text=text, column="parameters"),)
    return ()


def _of_decoding(rows: dict[str, Row], at: int) -> tuple[Footnote, ...]:
    if not any(row.entries[at].text for row in rows.values()):
        return ()
    text = (
        "each test set was translated once, by itself: no interleaved rounds, so the load of the moment is in it, "
        "and on a GPU the compiling of kernels for each new length"
    )
    return (Footnote(topic="decoded/s", text=text, warning=True, column="decoded_rate"),)


def _reason(scores: SeedScores | None, timing: RelativeCost | None, context: BoardContext) -> str:
    if scores is None:
        words = "" if timing is None or timing.outcome == Outcome.OK else f"; timing: {outcome_words(timing.outcome)}"
        return f"not trained{words}"
    if not context.setting.get("ranked", True):
        return f"preset {context.board_key.preset} proves that it runs and is never ranked"
    if scores.missing_reason:
        return scores.missing_reason
    return "nothing to be ranked against"


def _row(
    name: str, table: ResultTable, scores: SeedScores | None, timing: RelativeCost | None, context: BoardContext
) -> Row:
    reference = context.scores.get(REFERENCE)
    rows = [*(scores.rows if scores else ()), *([timing.row] if timing else ())]
    metric = context.metric
    level, gap, proven = TableCell(), TableCell(), TableCell()
    if scores and scores.seeds:
        found = scores.level()
        alone = "" if len(scores.seeds) >= LEAST_SEEDS else "few seeds"
        level = _scaled(found, metric.points, metric.level(found), note=alone)
        if name == REFERENCE:
            gap = TableCell(text="reference", value=0.0)
        elif reference and set(reference.seeds) & set(scores.seeds):
            estimate = scores.gap(reference)
            ends = estimate.interval()
            enough = len(set(reference.seeds) & set(scores.seeds)) >= LEAST_SEEDS
            if enough:
                gap = _advantage(ends, metric)
                proven = TableCell(text=_verdict_words(ends, context))
            else:
                gap = TableCell(text=metric.signed(ends.value), value=metric.difference(ends).value)
    entries = {
        metric.name: level,
        "gap": gap,
        "verdict": proven,
        "step_time": _step_time(timing, context),
        "memory": _memory(name, table, rows, context),
        "sparsity": _mean(_overall(table, rows, "sparsity"), wording.percent),
        "block_sparsity": _mean(_overall(table, rows, "block_sparsity", block=64), wording.percent),
        "null_rate": _mean(_overall(table, rows, "null_rate"), wording.percent),
        "perplexity": _mean(table.values("perplexity", rows, split="test"), "{:,.1f}".format),
        "diversity": _mean(_overall(table, rows, "head_diversity"), "{:.3f}".format),
        "alignment": _alignment(table, rows),
        "frontier": _frontier(name, context),
        "dividend": _dividend(table, rows, timing),
        "equal_time": _equal_time(name, context),
        "state": _state(name, context),
        "equal_state": _equal_state(name, context),
        "parameters": _parameters(table, rows, context),
        "examples_rate": _rate(table, rows, "examples_per_second"),
        "tokens_rate": _rate(table, rows, "tokens_per_second"),
        "padded_tokens_rate": _rate(table, rows, "padded_tokens_per_second"),
        "decoded_rate": _decoded(table, rows, reference.rows if reference and name != REFERENCE else ()),
        "seeds": TableCell(text=str(len(scores.seeds)), value=len(scores.seeds)) if scores else TableCell(),
        "implementation": TableCell(
            text=context.implementations.get(name, "") if context.implementations_differ else ""
        ),
    }
    return Row(
        name=name,
        entries=tuple(entries[c.name] for c in columns(metric)),
        reason=_reason(scores, timing, context),
        records=tuple(table.key(at) for at in rows),
    )


def _scaled(found: Interval, scale: float, text: str, *, note: str = "", brief: str = "") -> TableCell:
    value, low, high = (scale * end for end in (found.value, found.low, found.high))
    return TableCell(text=text, brief=brief, value=value, low=low, high=high, note=note)


def _advantage(ends: Interval, metric: Metric, suffix: str = "") -> TableCell:
    shown = metric.difference(ends)
    return TableCell(
        text=metric.gap(ends) + suffix, brief=metric.gap_in_brief(ends) + suffix, value=shown.value,
        low=shown.low, high=shown.high,
    )  # fmt: skip


def _verdict_words(gap: Interval, context: BoardContext) -> str:
    margin = context.metric.margin_words(context.margin)
    return {
        "better": "better",
        "within margin": f"within {margin}",
        "worse": f"worse by > {margin}",
        "undecided": "undecided",
    }[verdict(gap, context.margin / context.metric.points)]


def _step_time(timing: RelativeCost | None, context: BoardContext) -> TableCell:
    if timing is None:
        return TableCell()
    if timing.outcome != Outcome.OK:
        in_words = outcome_words(timing.outcome)
        if timing.outcome in CAPPED:
            return TableCell(text=f"{in_words} (counts as {CAP:.0f}×)", brief=in_words, value=CAP, note=timing.reason)
        return TableCell(text=in_words, note=timing.reason)
    if timing.cost is None:
        return TableCell(text="too few rounds", note=timing.reason)
    if timing.variant == REFERENCE:
        return TableCell(text=f"{wording.duration(timing.median)} a step", value=1.0)
    found = ratio(timing.cost)
    note = "≈" if abs(timing.cost.value) <= context.floor else ""
    return _scaled(found, 1, wording.speed(found), note=note, brief=wording.speed(wording.point(found.value)))


def _memory(name: str, table: ResultTable, rows: Rows, context: BoardContext) -> TableCell:
    own = table.values("peak_bytes", rows)
    if not own or not context.reference_bytes:
        return TableCell()
    if name == REFERENCE:
        return TableCell(text=wording.size(own[-1]), value=1.0)
    times = own[-1] / context.reference_bytes
    return TableCell(text=wording.memory(times), value=times)


def _overall(table: ResultTable, rows: Rows, name: str, **where: object) -> list[float]:
    """The finite values of what the variant does, one a Record; one kind of attention by itself may be softmax's."""
    found: list[float] = []
    for at in rows:
        measured = [m for m in table.numbers.of(at).get(name, ()) if "attention" not in m.where]
        found += [m.value for m in measured if where.items() <= m.where.items() and math.isfinite(m.value)][:1]
    return found


def _mean(found: list[float], words: Callable[[float], str]) -> TableCell:
    """Over seeds, from the lowest to the highest."""
    if not found:
        return TableCell()
    mean = math.fsum(found) / len(found)
    return TableCell(text=words(mean), value=mean, low=min(found), high=max(found))


def _alignment(table: ResultTable, rows: Rows) -> TableCell:
    lowest = lowest_error(table, rows)
    return TableCell() if lowest is None else TableCell(text=f"{lowest:.3f}", value=lowest)


def _dividend(table: ResultTable, rows: Rows, timing: RelativeCost | None) -> TableCell:
    density = table.values("declared_density", rows)
    if not density or timing is None or timing.cost is None or density[-1] >= 1:
        return TableCell()
    found = timing.cost.interval()
    value, low, high = (density[-1] * math.exp(-end) for end in (found.value, found.high, found.low))
    return TableCell(text=f"{value:.2f}", value=value, low=low, high=high)


def _frontier(name: str, context: BoardContext) -> TableCell:
    share = context.frontier_shares.get(name)
    if share is None:
        return TableCell()
    return TableCell(text=wording.percent(share), value=share, note="●" if name in context.frontier else "")


def _equal_time(name: str, context: BoardContext) -> TableCell:
    gap = context.at_equal_time.get(name)
    if gap is None:
        return TableCell()
    return _advantage(gap.interval(), context.metric)


def _state(name: str, context: BoardContext) -> TableCell:
    held = context.state_bytes.get(name)
    return TableCell() if held is None else TableCell(text=wording.size(held), value=held)


def _equal_state(name: str, context: BoardContext) -> TableCell:
    rival = context.at_equal_state.get(name)
    if rival is None:
        return TableCell()
    return _advantage(rival.gap.interval(), context.metric, f" vs {rival.name}")


def _parameters(table: ResultTable, rows: Rows, context: BoardContext) -> TableCell:
    found = table.values("parameters", rows)
    if not found:
        return TableCell()
    heavy = context.reference_parameters and found[-1] > 1.1 * context.reference_parameters
    return TableCell(text=wording.count(found[-1]), value=found[-1], note="†" if heavy else "")


def _decoded(table: ResultTable, rows: Rows, of_reference: Rows) -> TableCell:
    """Mean over seeds, and as a multiple of the reference's."""
    own, theirs = (table.values("decode_tokens_per_second", some) for some in (rows, of_reference))
    if not own:
        return TableCell()
    rate = sum(own) / len(own)
    times = f" ({rate / (sum(theirs) / len(theirs)):.2f}×)" if theirs else ""
    return TableCell(text=wording.count(rate) + times, value=rate)


def _rate(table: ResultTable, rows: Rows, name: str) -> TableCell:
    found = table.values(name, rows)
    return TableCell(text=wording.count(found[-1]), value=found[-1]) if found else TableCell()


def _baselines(levels: list[tuple[ResultRow, Interval | None]], metric: Metric) -> list[Row]:
    found = []
    for run, level in levels:
        if level is None:
            reason = ": ".join(filter(None, [outcome_words(run.outcome), run.reason]))
            found.append(Row(name=run.variant, entries=(TableCell(),) * len(columns(metric)), reason=reason))
            continue
        shown = _scaled(level, metric.points, metric.level(level))
        entries = tuple(shown if c.name == metric.name else TableCell() for c in columns(metric))
        found.append(Row(name=run.variant, entries=entries, records=(run.key,)))
    return found
