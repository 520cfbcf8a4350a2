"""The board of one task: variants ranked by the metric of the task, with their cost beside it."""

from __future__ import annotations

from collections.abc import Collection

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.record import Outcome
from ..score.key import BoardKey
from ..score.pareto import Curves
from ..score.quality import Predictions, describe_outcome, is_unlearned, trivial_levels
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Row, split_by_rank
from .cells import EMPTY, cells_of, finished, level_cell, plain_columns
from .kinds import SetStatistics, parts_of_wings
from .notes import describe_gaps, describe_losses, describe_size, nothing_ranked, quality_headline
from .quality_notes import (
    baseline_notes,
    comparison_notes,
    data_notes,
    interval_notes,
    learning_notes,
    seed_notes,
    short_preset,
    unbeaten,
    unsettled_notes,
)
from .setting_tables import setting_boards, setting_notes
from .task_columns import ANSWERS, task_columns, verdict_on
from .task_context import BoardContext
from .timings import task_timing_notes
from .version_notes import left_behind_notes, outdated, repetition_notes, takeover_notes, version_notes


def board_for_task(
    table: ResultTable,
    board_key: BoardKey,
    *,
    predictions: Predictions = lambda name: None,
    curves: Curves = lambda name: None,
    sets: SetStatistics = lambda name: {},
    margin: float | None = None,
    declared: Collection[str] | None = None,
) -> Board:
    """Ranks by the metric of the task; its parts are tables by setting, and what wings add.

    `margin`: how many points worse than the reference still count as no worse, None for the metric's own. `declared`:
    the variants that the noise of seeds is taken from, and for whose pairs all comparisons are corrected,
    None for the comparison set of the metric.
    """
    context = BoardContext.of(table, board_key, predictions, curves, margin, declared)
    metric, scores = context.metric, context.scores
    parts = parts_of_wings(context, sets)
    columns = [*task_columns(context), *(column for each in parts for column in each.columns)]

    def row(name: str, reason: str) -> Row:
        records = tuple(table.rows[at].key for at in context.rows_of(name))
        return Row(name=name, entries=cells_of(columns, name), reason=reason, records=records)

    names = sorted({*scores, *context.timings} - ({NO_ATTENTION} - set(scores)))
    rows = {name: row(name, _reason(name, context)) for name in names}
    complete = [name for name, one in scores.items() if not one.missing_reason and context.is_ranked]
    order = context.contrasts.rank_intervals(complete) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    verdicts = {name: found for name in names if (found := verdict_on(context, name)) is not None}
    contrasts = {name: gap for name in verdicts if (gap := context.contrasts.to_reference(name)) is not None}
    losses = describe_losses(contrasts, metric)
    missed = describe_gaps([gap for name, gap in contrasts.items() if verdicts[name] == "undecided"], metric)
    gaps = [gap for name in sorted(complete) if (gap := context.contrasts.to_reference(name)) and gap.has_enough_seeds]
    trivial = list(trivial_levels(table, board_key, metric, predictions))
    untouched = []
    if without := context.without_attention:
        untouched = [row(NO_ATTENTION, "" if without.seeds else _reason(NO_ATTENTION, context))]
    blank = (EMPTY,) * (len(columns) - 1)
    baselines = tuple(
        # the first column is the metric's
        Row(
            name=run.variant,
            entries=(level_cell(metric, level) if level else EMPTY, *blank),
            reason="" if level else ": ".join(filter(None, [describe_outcome(run.outcome), run.reason])),
            records=(run.key,),
        )
        for run, level in trivial
    )
    unlearned = nothing_learned(context)
    answer = "" if ranked or (unlearned and context.is_ranked) else nothing_ranked(unranked)
    is_told = not unlearned or "better" in verdicts.values()
    if not is_told:
        unlearned = unlearned.removesuffix(".") + ", so this board compares nothing."
    elif ranked:
        said = quality_headline(
            verdicts,
            metric.margin_words(context.margin),
            behind=losses,
            missed=missed,
            unsettled=[name for name, one in scores.items() if one.unsettled],
            unestablished=[name for name, one in scores.items() if one.unestablished],
            remarks={
                name: "; ".join(words)
                for name, found in verdicts.items()
                if found == "better" and (words := describe_size(name, context.more_parameters(name), verdicts))
            },
        )
        answer = " ".join(filter(None, [unbeaten(trivial, scores, metric), said]))
    board = Board(
        name=board_key.name,
        title=f"{board_key.task}, preset {board_key.preset}",
        question=f"Which attention {metric.question} on {board_key.task} ({short_preset(board_key.preset)})?",
        learned=is_told,
        headline=" ".join(filter(None, [unlearned if context.is_ranked else "", answer, outdated(context.runs)])),
        columns=plain_columns(columns, (metric.name, *ANSWERS)),
        ranked=ranked,
        unranked=unranked,
        baselines=(*untouched, *baselines),
        notes=(
            *learning_notes(context),
            *unsettled_notes({"": scores}),
            *data_notes(context),
            *interval_notes(context),
            *comparison_notes(context.contrasts, complete, gaps, metric),
            *takeover_notes(table, [board_key]),
            *repetition_notes(table, [board_key]),
            *seed_notes(scores),
            *left_behind_notes(table, [board_key], names),
            *baseline_notes(trivial, scores, metric),
            *task_timing_notes(context),
            *version_notes(table, context.runs, [(board_key.task, board_key.preset)]),
            *(note for each in parts for note in each.notes),
            *setting_notes(context.settings),
        ),
        parts=(
            *(board for each in parts for board in each.boards),
            *setting_boards(board_key, context.settings, [row.name for row in (*ranked, *unranked)]),
        ),
    )
    return finished(board)


def nothing_learned(context: BoardContext) -> str:
    """The sentence that heads a board whose reference did not learn the task; empty where it did."""
    reference = context.scores.get(REFERENCE)
    constant = context.bars.constant
    if constant is None or reference is None or not is_unlearned(reference):
        return ""
    return (
        f"Even {REFERENCE} learned nothing here ({sum(reference.above_by_seed)} of {len(reference.seeds)} seeds above "
        f"{constant.name}, {context.metric.value(constant.score)})."
    )


def _reason(name: str, context: BoardContext) -> str:
    scores, cost = context.contrasts.scores.get(name), context.timings.get(name)
    if scores is None:
        return "not trained" + (
            f"; timing: {describe_outcome(cost.outcome)}" if cost and cost.outcome != Outcome.OK else ""
        )
    # one that failed has no seed, and a reason of its own
    if not context.is_ranked and scores.seeds:
        return f"preset {context.board_key.preset} only shows that the code runs"
    return scores.missing_reason or NO_RIVAL
