"""The board of a suite: quality task by task first, then the average that these cells give, and who covers all."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.interval import Interval
from ..core.metrics import Metric
from ..score.baselines import trivial_levels
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, metric_of, scores_by_variant
from ..stats import format as wording
from ..stats.intervals import Estimate
from ..stats.ranking import standings
from ..store.table import ResultTable
from .board import Board, Column, Footnote, Row, TableCell, in_order
from .footnotes import PERCENT
from .length_board import mean_of


def board_for_suite(
    table: ResultTable,
    name: str,
    questions: list[BoardKey],
    *,
    predictions: Predictions = lambda name: None,
    wanted: tuple[str, ...] = (),
) -> Board:
    """Ranks by mean points against the reference over all tasks; a variant that lacks one has no average and no rank.

    `questions`: one a task, equal in all but task and fidelity. `wanted`: the tasks of the suite, also those without
    Records. Raises SelectionError for questions that must not be mixed.
    """
    if not questions:
        raise SelectionError(f"no Records of any task of the suite {name}")
    by_task = {board_key.task: board_key for board_key in questions}
    apart = [
        axis
        for axis in ("preset", "selection", "protocol")
        if len({getattr(board_key, axis) for board_key in questions}) > 1
    ]
    if len(by_task) < len(questions) or apart:
        axes = ", ".join(apart) or "fidelity or machine"
        raise SelectionError(f"the suite {name} needs one question a task, but these differ in {axes}; choose one")
    metrics = {metric_of(table, board_key) for board_key in questions}
    if len(metrics) > 1:
        titles = wording.listed(sorted(one.title for one in metrics))
        raise SelectionError(f"the tasks of {name} are judged by {titles}, which have no average; show each alone")
    (metric,) = metrics
    found = {task: scores_by_variant(table, board_key, predictions) for task, board_key in by_task.items()}
    tasks = sorted({*by_task, *wanted})
    variants = sorted({variant for scores in found.values() for variant in scores})
    lacks = {variant: _lack(variant, tasks, found) for variant in variants}
    able = [variant for variant in variants if not lacks[variant]]

    def gap(one: str, other: str) -> Estimate:
        return mean_of([found[task][one].gap(found[task][other]) for task in tasks])

    columns = (
        *(
            Column(name=task, title=task, unit=metric.display_unit, better=metric.better, importance=1,
                   description=f"test {metric.title}")
            for task in tasks
        ),
        Column(name="average", title="average", unit=metric.display_unit, better=metric.better, importance=0,
               description=f"mean {metric.title} of the tasks before it"),
        Column(name="gap", title=f"vs {REFERENCE}", unit=metric.of_difference, better=metric.better, importance=0,
               description="mean over tasks of the differences to the reference, with its 95 % interval"),
        Column(name="coverage", title="tasks", importance=2, description="tasks that count for this variant"),
    )  # fmt: skip
    rows = {
        variant: Row(
            name=variant,
            entries=_entries(variant, tasks, found, not lacks[variant], metric),
            reason=lacks[variant] or "nothing to be ranked against",
        )
        for variant in variants
    }
    order = standings(able, gap) if len(able) > 1 else []
    trivial = {task: _best_trivial(table, board_key, metric, predictions) for task, board_key in by_task.items()}
    best = {task: found for task, found in trivial.items() if found is not None}
    return Board(
        name=f"suite {name}/{questions[0].preset}/{questions[0].selection}",
        title=f"suite {name}, preset {questions[0].preset}",
        question=f"Which attention {metric.question} over the {len(tasks)} tasks of {name}?",
        columns=columns,
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        baselines=_baselines(tasks, best, metric) if best else (),
        footnotes=(*_footnotes(questions), *_named(best)),
    )  # fmt: skip


def _best_trivial(
    table: ResultTable, board_key: BoardKey, metric: Metric, predictions: Predictions
) -> tuple[str, Interval] | None:
    """The best baseline of a task and its level."""
    levels = trivial_levels(table, board_key, metric, predictions)
    known = [(run.variant, level) for run, level in levels if level is not None]
    return max(known, key=lambda pair: metric.sign * pair[1].value, default=None)


def _baselines(tasks: list[str], best: Mapping[str, tuple[str, Interval]], metric: Metric) -> tuple[Row, ...]:
    """One row: what the best of the trivial predictors reaches on each task."""
    cells = []
    for task in tasks:
        if task not in best:
            cells.append(TableCell())
            continue
        cells.append(_cell(best[task][1], metric))
    average = TableCell()
    if len(best) == len(tasks):
        average = _average([level.value for _, level in best.values()], metric)
    coverage = TableCell(text=f"{len(best)} of {len(tasks)}", value=len(best))
    return (Row(name="best trivial", entries=(*cells, average, TableCell(), coverage)),)


def _named(best: Mapping[str, tuple[str, Interval]]) -> list[Footnote]:
    if not best:
        return []
    named = ", ".join(f"{task} {name}" for task, (name, _) in sorted(best.items()))
    return [Footnote(topic="best trivial", text=f"the best predictor that knows no attention, on each task: {named}")]


def _lack(variant: str, tasks: list[str], found: Mapping[str, Mapping[str, SeedScores]]) -> str:
    problems = []
    for task in tasks:
        scores = found.get(task, {}).get(variant)
        if scores is None:
            problems.append(f"{task}: not run")
        elif scores.missing_reason:
            problems.append(f"{task}: {scores.missing_reason}")
    return "; ".join(problems)


def _entries(
    variant: str, tasks: list[str], found: Mapping[str, Mapping[str, SeedScores]], able: bool, metric: Metric
) -> tuple[TableCell, ...]:  # fmt: skip
    entries, values = [], []
    for task in tasks:
        scores = found.get(task, {}).get(variant)
        if scores is None or not scores.seeds:
            entries.append(TableCell())
            continue
        level = scores.level()
        values.append(level.value)
        entries.append(_cell(level, metric))
    covered = sum(variant in found.get(task, {}) and not found[task][variant].missing_reason for task in tasks)
    average, gap = TableCell(), TableCell()
    if able:
        average = _average(values, metric)
        if variant == REFERENCE:
            gap = TableCell(text="reference", value=0.0)
        else:
            ends = mean_of([found[task][variant].gap(found[task][REFERENCE]) for task in tasks]).interval()
            shown = metric.difference(ends)
            gap = TableCell(text=metric.gap(ends), value=shown.value, low=shown.low, high=shown.high)
    return (*entries, average, gap, TableCell(text=f"{covered} of {len(tasks)}", value=covered))


def _cell(level: Interval, metric: Metric) -> TableCell:
    value, low, high = (metric.points * end for end in (level.value, level.low, level.high))
    return TableCell(text=metric.level(level), brief=metric.value(level.value), value=value, low=low, high=high)


def _average(values: list[float], metric: Metric) -> TableCell:
    mean = sum(values) / len(values)
    return TableCell(text=metric.value(mean), value=metric.points * mean)


def _footnotes(questions: list[BoardKey]) -> list[Footnote]:
    fidelities = ", ".join(f"{board_key.task} {board_key.fidelity}" for board_key in questions)
    notes = [
        Footnote(topic="data", text=fidelities, warning=any(q.fidelity == "surrogate" for q in questions)),
        Footnote(
            topic="average",
            text=f"recomputed from the cells beside it; brackets: {PERCENT} intervals over seeds and test examples, on "
            "these tasks and not on others like them",
        ),
        Footnote(topic="rank", text="only with every task; equal places are ties, in alphabetical order"),
    ]
    if questions[0].selection == "test":
        notes.insert(1, Footnote(topic="selection", text="checkpoints were chosen on the test splits", warning=True))
    return notes
