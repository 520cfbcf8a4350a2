"""The board of a suite: the score on each task, their average, and the number of tasks that count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.errors import SelectionError
from ..core.interval import Interval
from ..core.metrics import Metric
from ..score.baselines import trivial_levels
from ..score.contrasts import Contrast, Contrasts, mean_contrast
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, is_unlearned, metric_of, scores_by_variant
from ..stats.format import listed
from ..stats.ranking import standings
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Note, Row, TableCell, split_by_rank
from .cells import EMPTY, difference_cell, level_cell, number_cell, reference_cell
from .columns import BoardColumn, cells_of, plain_columns
from .footnotes import CHOSEN_ON_TEST, PERCENT, RANKS, version_footnotes
from .headline import nothing_ranked, quality_headline
from .notes import NoteKind, footnote
from .preset_text import short_preset
from .quality_notes import (
    corrected_words,
    left_behind_footnotes,
    repetition_footnotes,
    resolution_footnotes,
    rows_left_behind,
)
from .suite_versions import of_one_version


class SuiteRow(NamedTuple):
    """What the cells of one row are made from: its level by task, its difference from the reference, and coverage."""

    levels: Mapping[str, Interval]
    covered: int
    complete: bool
    gap: TableCell


def board_for_suite(
    table: ResultTable,
    name: str,
    board_keys: list[BoardKey],
    *,
    predictions: Predictions = lambda name: None,
    wanted: tuple[str, ...] = (),
    declared: Collection[str] | None = None,
) -> Board:
    """Ranks by mean points against the reference over all tasks; a variant that lacks one has no average and no rank.

    A task that the reference did not learn leaves the average for all. `board_keys`: one a task, equal in all but task
    and fidelity. `wanted`: the tasks of the suite, also those without Records. `declared`: its variants. Raises
    SelectionError for board_keys that must not be mixed.
    """
    metric = _common_metric(table, name, board_keys)
    table, differing = of_one_version(table, board_keys)
    by_task = {board_key.task: board_key for board_key in board_keys}
    scores = {task: scores_by_variant(table, board_key, predictions) for task, board_key in by_task.items()}
    contrasts = {task: Contrasts(found, declared) for task, found in scores.items()}
    tasks = sorted({*by_task, *wanted})
    unlearned = [task for task in by_task if is_unlearned(scores[task].get(REFERENCE))]
    averaged = [task for task in tasks if task not in unlearned]
    competes = declared is not None and NO_ATTENTION in declared
    every = sorted({variant for found in scores.values() for variant in found})
    variants = [variant for variant in every if variant != NO_ATTENTION or competes]
    missing = {variant: differing.get(variant) or _missing(variant, tasks, scores) for variant in every}
    averaging = [variant for variant in every if not missing[variant]] if averaged else []
    complete = [variant for variant in averaging if variant in variants]

    def gap(one: str, other: str) -> Contrast:
        return mean_contrast([contrasts[task].between(one, other) for task in averaged])

    def row(variant: str) -> SuiteRow:
        found = {task: scores[task][variant] for task in by_task if variant in scores[task]}
        difference = EMPTY
        if variant in averaging and REFERENCE in complete:
            is_reference = variant == REFERENCE
            difference = (
                reference_cell(0.0) if is_reference else difference_cell(metric, gap(variant, REFERENCE).interval)
            )
        levels = {task: contrasts[task].level_of(variant) for task, own in found.items() if own.seeds}
        covered = sum(not own.missing_reason for own in found.values())
        return SuiteRow(levels, covered, variant in averaging, difference)

    columns = suite_columns(name, tasks, averaged, metric)
    rows = {
        variant: Row(name=variant, entries=cells_of(columns, row(variant)), reason=missing[variant] or NO_RIVAL)
        for variant in variants
    }
    for board_key in board_keys:
        rows |= rows_left_behind(table, board_key, rows, len(columns))
    pairs = next(iter(contrasts.values())).pairs
    order = standings(complete, lambda one, other: gap(one, other).advantage, pairs=pairs) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    margin = metric.margin / metric.points
    others = [variant for variant in complete if variant != REFERENCE and REFERENCE in complete]
    gaps = {variant: gap(variant, REFERENCE) for variant in others}
    verdicts = {variant: found.verdict(margin) for variant, found in gaps.items()}
    behind = [variant for variant, found in gaps.items() if found.is_behind]
    headline = " ".join(
        filter(
            None,
            [
                _left_out(unlearned, averaged),
                quality_headline(verdicts, metric.margin_words(metric.margin), average=True, behind=behind)
                if ranked
                else nothing_ranked(unranked),
            ],
        )
    )
    best = {task: found for task, key in by_task.items() if (found := _best_baseline(table, key, metric, predictions))}
    levels = {task: level for task, (_, level) in best.items()}
    untouched = [
        Row(name=variant, entries=cells_of(columns, row(variant)), reason=missing[variant])
        for variant in every
        if variant not in variants
    ]
    baseline = SuiteRow(levels, len(best), all(task in best for task in averaged), EMPTY)
    return Board(
        name=f"suite {name}/{board_keys[0].preset}/{board_keys[0].selection}",
        title=f"suite {name}, preset {board_keys[0].preset}",
        question=f"Which attention {metric.question} over the {len(tasks)} tasks of {name} "
        f"({short_preset(board_keys[0].preset)})?",
        headline=headline,
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        baselines=(*untouched, *([Row(name="best trivial", entries=cells_of(columns, baseline))] if best else [])),
        notes=tuple(_footnotes(table, name, board_keys, best, contrasts, complete, list(gaps.values()))),
        ranked_by="average",
    )


def _left_out(unlearned: Sequence[str], averaged: Sequence[str]) -> str:
    """
    >>> _left_out(["lra-pathfinder"], ["lra-text", "lra-image"])
    'softmax did not learn lra-pathfinder: the average is over the other 2 tasks.'
    """
    if not unlearned:
        return ""
    rest = f"the average is over the other {len(averaged)} tasks" if averaged else "there is no average"
    return f"{REFERENCE} did not learn {listed(sorted(unlearned))}: {rest}."


def suite_columns(
    suite: str, tasks: list[str], averaged: list[str], metric: Metric
) -> tuple[BoardColumn[SuiteRow], ...]:
    """One column for each task, then the average, the difference from the reference, and coverage."""

    def on(task: str) -> Callable[[SuiteRow], TableCell]:
        def cell(row: SuiteRow) -> TableCell:
            level = row.levels.get(task)
            return level_cell(metric, level, brief=metric.value(level.value)) if level else EMPTY

        return cell

    def average(row: SuiteRow) -> TableCell:
        values = [row.levels[task].value for task in averaged] if row.complete else []
        mean = sum(values) / len(values) if values else 0.0
        return TableCell(text=metric.value(mean), value=metric.points * mean) if values else EMPTY

    return (
        *(
            BoardColumn(name=task, title=task, short=task.removeprefix(f"{suite}-"), unit=metric.display_unit,
                        better=metric.better, cell=on(task), description=f"test {metric.title}")
            for task in tasks
        ),
        BoardColumn(name="average", title="average", short="mean", unit=metric.display_unit, better=metric.better,
                    importance=0, description=f"mean {metric.title} over these tasks", cell=average),
        BoardColumn(name="gap", title=f"vs {REFERENCE}", short="gap", unit=metric.of_difference, better=metric.better,
                    importance=0,
                    description=f"mean over tasks of the differences from {REFERENCE}, with its 95 % interval",
                    cell=lambda row: row.gap),
        BoardColumn(name="coverage", title="tasks", importance=2, description="tasks that count for this variant",
                    cell=lambda row: number_cell(row.covered, lambda covered: f"{covered} of {len(tasks)}")),
    )  # fmt: skip


def _common_metric(table: ResultTable, name: str, board_keys: list[BoardKey]) -> Metric:
    """The metric of all tasks; raises SelectionError where the board_keys must not be mixed."""
    if not board_keys:
        raise SelectionError(f"no Records of any task of the suite {name}")
    differing = [
        axis for axis in ("preset", "selection", "protocol") if len({getattr(q, axis) for q in board_keys}) > 1
    ]
    if differing or len({board_key.task for board_key in board_keys}) < len(board_keys):
        axes = ", ".join(differing) or "fidelity or machine"
        raise SelectionError(f"a board of the suite {name} needs one board a task; these differ in {axes}; choose one")
    # what guessing reaches is each task's own, and decides who learned it, not what an average means
    metrics = {metric_of(table, board_key).with_chance(None) for board_key in board_keys}
    if len(metrics) > 1:
        titles = listed(sorted(one.title for one in metrics))
        raise SelectionError(f"the tasks of {name} are judged by {titles}, which have no average; show each alone")
    return metrics.pop()


def _best_baseline(
    table: ResultTable, board_key: BoardKey, metric: Metric, predictions: Predictions
) -> tuple[str, Interval] | None:
    """The best trivial predictor of a task and its level."""
    levels = trivial_levels(table, board_key, metric, predictions)
    known = [(run.variant, level) for run, level in levels if level is not None]
    return max(known, key=lambda pair: metric.sign * pair[1].value, default=None)


def _missing(variant: str, tasks: list[str], scores: Mapping[str, Mapping[str, SeedScores]]) -> str:
    found = {task: scores.get(task, {}).get(variant) for task in tasks}
    lacking: dict[str, list[str]] = {}
    for task, own in found.items():
        reason = own.missing_reason if own else "not run"
        if reason:
            lacking.setdefault(reason, []).append(task)
    return "; ".join(f"{listed(there)}: {reason}" for reason, there in lacking.items())


def _footnotes(
    table: ResultTable,
    suite: str,
    board_keys: list[BoardKey],
    best: Mapping[str, tuple[str, Interval]],
    contrasts: Mapping[str, Contrasts],
    complete: Sequence[str],
    gaps: Sequence[Contrast],
) -> Iterator[Note]:
    by_fidelity: dict[str, list[str]] = {}
    for board_key in board_keys:
        by_fidelity.setdefault(board_key.fidelity, []).append(board_key.task)
    yield footnote(
        topic="data",
        text="; ".join(f"{fidelity}: {listed(tasks)}" for fidelity, tasks in by_fidelity.items()),
        kind=NoteKind.DATA,
        brief="; ".join(
            f"{fidelity} {', '.join(task.removeprefix(f'{suite}-') for task in tasks)}"
            for fidelity, tasks in by_fidelity.items()
        ),
        warning="surrogate" in by_fidelity,
    )
    if board_keys[0].selection == "test":
        yield CHOSEN_ON_TEST
    yield footnote(
        topic="average",
        text=f"computed from the cells of the row; brackets: {PERCENT} intervals over seeds and test examples, for "
        "these tasks and not for others",
    )
    yield footnote(topic="rank", text=f"only for variants with every task; {RANKS}")
    for task, found in sorted(contrasts.items()):
        some = sorted(name for name, one in found.scores.items() if one.seeds and not all(one.learned))
        # that the model without attention learned nothing is no news
        some = [name for name in some if name != NO_ATTENTION]
        if some:
            text = f"{task}: not every seed of {listed(some)} is above the best constant prediction"
            yield footnote(topic="learned", text=text, kind=NoteKind.LEARNING, brief=text if len(text) < 80 else "")
    for each in gaps[:1]:
        yield from resolution_footnotes(gaps, each.metric, each.metric.margin)
    if len(complete) > 1:
        words = corrected_words(next(iter(contrasts.values())), complete)
        yield footnote(topic="comparisons", text=f"intervals, verdicts and ranks are one test at 95 %, {words}")
    yield from repetition_footnotes(table, board_keys)
    yield from left_behind_footnotes(table, board_keys)
    if best:
        named = ", ".join(f"{task} {name}" for task, (name, _) in sorted(best.items()))
        yield footnote(topic="best trivial", text=f"the best predictor without attention, by task: {named}")
    runs = [run for board_key in board_keys for run in board_key.runs(table, "train", "baseline")]
    yield from version_footnotes(table, runs, [])
