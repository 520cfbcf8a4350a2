"""The board of one task: variants ranked by the metric of the task, with their cost beside it."""

from __future__ import annotations

from collections.abc import Collection

from ..core.cell import NO_ATTENTION
from ..core.record import Outcome
from ..score.baselines import trivial_levels
from ..score.key import BoardKey
from ..score.matched_budget import Curves
from ..score.quality import Predictions, outcome_words
from ..store.table import ResultTable
from .attention_tables import attention_boards, attention_footnotes
from .board import NO_RIVAL, Board, Row, split_by_rank
from .cells import EMPTY, level_cell
from .columns import cells_of, column_footnotes, plain_columns
from .footnotes import (
    baseline_footnotes,
    cost_footnotes,
    data_footnotes,
    dropout_footnotes,
    preset_footnote,
    quality_footnotes,
    version_footnotes,
)
from .headline import nothing_ranked, quality_headline
from .preset_text import short_preset
from .quality_notes import (
    attention_gain_footnotes,
    comparison_footnotes,
    learning_footnotes,
    left_behind_footnotes,
    nothing_learned,
    repetition_footnotes,
    rows_left_behind,
    seed_footnotes,
)
from .setting_tables import setting_boards, setting_footnotes
from .task_columns import ANSWERS, task_columns, verdict_on
from .task_context import BoardContext, VariantContext
from .test_sets import SetStatistics, scores_by_set, set_boards, set_footnotes


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
    """Ranks by the metric of the task; its parts are the boards of single test sets and kinds of attention.

    `margin`: how many points worse than the reference still count as no worse, None for the metric's own. `declared`:
    the variants that the noise of seeds is taken from, and for whose pairs all comparisons are corrected,
    None for the comparison set of the metric.
    """
    context = BoardContext.of(table, board_key, predictions, curves, margin, declared)
    metric, scores = context.metric, context.scores
    columns = [column for column in task_columns(context) if column.present]
    names = {*scores, *(set(context.timings) - {NO_ATTENTION})}
    variants = [VariantContext.of(name, context) for name in sorted(names)]
    rows = {
        variant.name: Row(
            name=variant.name,
            entries=cells_of(columns, variant),
            reason=_reason(variant, context),
            records=tuple(table.rows[at].key for at in variant.rows),
        )
        for variant in variants
    }
    rows |= rows_left_behind(table, board_key, rows, len(columns))
    complete = [name for name, one in scores.items() if not one.missing_reason and context.is_ranked]
    order = context.contrasts.standings(complete) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    verdicts = {variant.name: found for variant in variants if (found := verdict_on(context, variant)) is not None}
    contrasts = {name: context.contrasts.to_reference(name) for name in verdicts}
    behind = [name for name, found in contrasts.items() if found is not None and found.is_behind]
    by_set = scores_by_set(table, board_key, metric, sets)
    attention = attention_boards(table, board_key) if by_set else []
    trivial = list(trivial_levels(table, board_key, metric, predictions))
    without = [VariantContext.of(NO_ATTENTION, context)] if context.without_attention else []
    untouched = [
        Row(
            name=each.name,
            entries=cells_of(columns, each),
            reason="" if context.without_attention and context.without_attention.seeds else _reason(each, context),
            records=tuple(table.rows[at].key for at in each.rows),
        )
        for each in without
    ]
    blank = (EMPTY,) * (len(columns) - 1)
    baselines = tuple(
        # the first column is the metric's
        Row(name=run.variant, entries=(level_cell(metric, level), *blank), records=(run.key,))
        if level is not None
        else Row(
            name=run.variant,
            entries=(EMPTY, *blank),
            reason=": ".join(filter(None, [outcome_words(run.outcome), run.reason])),
        )
        for run, level in trivial
    )
    return Board(
        name=board_key.name,
        title=f"{board_key.task}, preset {board_key.preset}",
        question=f"Which attention {metric.question} on {board_key.task} ({short_preset(board_key.preset)})?",
        learned=not nothing_learned(context),
        headline=" ".join(
            filter(
                None,
                [
                    nothing_learned(context) if context.is_ranked else "",
                    quality_headline(verdicts, metric.margin_words(context.margin), behind=behind)
                    if ranked
                    else nothing_ranked(unranked),
                ],
            )
        ),
        columns=plain_columns(columns, (metric.name, *ANSWERS)),
        ranked=ranked,
        unranked=unranked,
        baselines=(*untouched, *baselines),
        notes=(
            *learning_footnotes(context),
            *data_footnotes(context),
            preset_footnote(context),
            *dropout_footnotes(context),
            *quality_footnotes(context),
            *comparison_footnotes(context.contrasts, complete, context.metric, context.margin),
            *repetition_footnotes(table, [board_key]),
            *seed_footnotes(scores),
            *left_behind_footnotes(table, [board_key]),
            *attention_gain_footnotes(context),
            *baseline_footnotes(trivial, scores, metric),
            *cost_footnotes(context),
            *column_footnotes(columns, [*rows.values(), *untouched]),
            *version_footnotes(table, context.runs, [(board_key.task, board_key.preset)]),
            *set_footnotes(by_set),
            *attention_footnotes(attention),
            *setting_footnotes(context.settings),
        ),
        parts=(
            *set_boards(board_key, metric, by_set, context.contrasts),
            *attention,
            *setting_boards(board_key, context.settings, [row.name for row in (*ranked, *unranked)]),
        ),
    )


def _reason(variant: VariantContext, context: BoardContext) -> str:
    scores, cost = variant.scores, variant.cost
    if scores is None:
        return "not trained" + (
            f"; timing: {outcome_words(cost.outcome)}" if cost and cost.outcome != Outcome.OK else ""
        )
    # one that failed has no seed, and a reason of its own
    if not context.is_ranked and scores.seeds:
        return f"preset {context.board_key.preset} only shows that the code runs"
    return scores.missing_reason or NO_RIVAL
