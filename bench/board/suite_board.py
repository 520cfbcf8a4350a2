"""The board of a suite: the score on each task, their average, and the number of tasks that count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.errors import SelectionError
from ..core.interval import Interval
from ..core.metrics import Metric
from ..score.contrasts import Contrast, Contrasts, contrast_ranks, mean_contrast
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, is_unlearned, metric_of, scores_by_variant, trivial_levels
from ..stats.format import listed
from ..stats.intervals import Share
from ..store.rows import ResultRow, complete_variants, harness_version, version_order
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Column, Note, Row, TableCell, split_by_rank
from .cells import (
    EMPTY,
    Cell,
    cells_of,
    difference_cell,
    finished,
    level_cell,
    number_cell,
    plain_columns,
    reference_cell,
    share_cell,
    when,
)
from .notes import describe_gaps, describe_losses, note, nothing_ranked, quality_headline, some, where_better
from .quality_notes import comparison_notes, reduced_notes, short_preset
from .version_notes import left_behind_notes, repetition_notes, version_notes

TRIVIAL = "best trivial"
"""The row of the best predictor without attention on each task."""


def board_for_suite(
    table: ResultTable,
    suite: str,
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
    metric = _common_metric(table, suite, board_keys)
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

    levels: dict[str, dict[str, Interval]] = {
        task: {name: contrasts[task].level_of(name) for name, own in found.items() if own.seeds}
        for task, found in scores.items()
    }
    best = {task: found for task, key in by_task.items() if (found := _best_baseline(table, key, metric, predictions))}
    for task, (_, level) in best.items():
        levels[task][TRIVIAL] = level
    everywhere = {*averaging, *([TRIVIAL] if set(averaged) <= set(best) else [])}
    covered = {name: sum(not own[name].missing_reason for own in scores.values() if name in own) for name in every}
    gaps = {name: gap(name, REFERENCE) for name in averaging if name != REFERENCE and REFERENCE in complete}

    def level_on(task: str, name: str) -> TableCell:
        level = levels.get(task, {}).get(name)
        return level_cell(metric, level, brief=metric.value(level.value)) if level else EMPTY

    def average(name: str) -> TableCell:
        values = [levels[task][name].value for task in averaged] if name in everywhere else []
        mean = sum(values) / len(values) if values else 0.0
        return TableCell(text=metric.value(mean), value=metric.points * mean) if values else EMPTY

    def difference(name: str) -> TableCell:
        if name == REFERENCE and REFERENCE in complete:
            return reference_cell(0.0)
        return difference_cell(metric, gaps[name].interval) if name in gaps else EMPTY

    trained = {name: [contrasts[task].share_of(name) for task in averaged] for name in averaging}
    learned = {name: Share(*map(sum, zip(*shares, strict=True))) for name, shares in trained.items()}
    failed = any(one.learned_in_part for found in scores.values() for one in found.values())

    def learned_at(name: str) -> TableCell:
        return share_cell(learned[name]) if name in learned else EMPTY

    def over_all_seeds(name: str) -> TableCell:
        if name not in averaging:
            return EMPTY
        mean = sum(scores[task][name].mean for task in averaged) / len(averaged)
        return TableCell(text=metric.value(mean), value=metric.points * mean)

    def coverage(name: str) -> TableCell:
        return number_cell(covered.get(name, len(best)), lambda count: f"{count} of {len(tasks)}")

    columns: list[tuple[Column, Cell]] = [
        *(
            (Column(name=task, title=task, short=task.removeprefix(f"{suite}-"), unit=metric.display_unit,
                    better=metric.better, description=f"test {metric.title}"),
             partial(level_on, task))
            for task in tasks
        ),
        (Column(name="average", title="average", short="mean", unit=metric.display_unit, better=metric.better,
                importance=0, description=f"mean {metric.title} over these tasks",
                note="intervals hold for these tasks and not for others; a ± may differ from that on the task's own "
                "board, where other declared variants lend their variance over seeds"),
         average),
        (Column(name="gap", title=f"vs {REFERENCE}", short="gap", unit=metric.of_difference, better=metric.better,
                importance=0,
                description=f"mean over tasks of the differences from {REFERENCE}, with its 95 % interval"),
         difference),
        *when(failed,
            Column(name="learned", title="learned", unit="seeds", better="higher", importance=1,
                   description="trainings here that learned, with the exact 95 % interval of the share that learns"),
            learned_at),
        *when(failed,
            Column(name="all_seeds", title="all seeds", unit=metric.display_unit, better=metric.better, importance=3,
                   description=f"mean {metric.title} over these tasks and all seeds, whether they learned or not",
                   note="a variant cannot rank above another that has a better mean over all seeds"),
            over_all_seeds),
        (Column(name="coverage", title="tasks", importance=2, description="tasks that count for this variant"),
         coverage),
    ]  # fmt: skip
    rows = {one: Row(name=one, entries=cells_of(columns, one), reason=missing[one] or NO_RIVAL) for one in variants}
    order = contrast_ranks(complete, gap, next(iter(contrasts.values())).pairs) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    compared = {name: found for name, found in gaps.items() if name in complete}
    verdicts = {name: found.verdict(metric.margin / metric.points) for name, found in compared.items()}
    missed = describe_gaps([found for name, found in compared.items() if verdicts[name] == "undecided"], metric)
    losses = describe_losses(compared, metric)
    # the verdict on one task is that of its own board, which no suite declares
    ahead = {task: _ahead(Contrasts(scores[task]), complete, metric) for task in averaged if task in scores}
    preset = board_keys[0].preset
    within = metric.margin_words(metric.margin)
    told = quality_headline(verdicts, within, average=True, behind=losses, missed=missed)
    answer = (
        f"{where_better(ahead)} {told}".strip()
        if ranked
        else f"{nothing_ranked(unranked)} A rank takes all {len(tasks)} tasks: `attnbench run --suite {suite} --preset "
        f"'{preset}'` runs those that have this preset. The board of each task ranks its own rows."
    )
    rest = [one for one in every if one not in variants]
    untouched = [Row(name=one, entries=cells_of(columns, one), reason=missing[one]) for one in rest]
    trivial = [Row(name=TRIVIAL, entries=cells_of(columns, TRIVIAL))] if best else []
    board = Board(
        name=f"suite {suite}/{preset}/{board_keys[0].selection}",
        title=f"suite {suite}, preset {preset}",
        question=f"Which attention {metric.question} over the {len(tasks)} tasks of {suite} ({short_preset(preset)})?",
        headline=" ".join(filter(None, [_left_out(unlearned, averaged), answer])),
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        baselines=(*untouched, *trivial),
        notes=(
            *_notes(table, board_keys, best, contrasts),
            *comparison_notes(next(iter(contrasts.values())), complete, list(compared.values()), metric, average=True),
            *left_behind_notes(table, board_keys, rows),
        ),
        ranked_by="average",
    )
    return finished(board)


def _ahead(contrasts: Contrasts, names: Sequence[str], metric: Metric) -> list[str]:
    """Who is better than the reference on one task."""
    gaps = {name: contrasts.to_reference(name) for name in names}
    return [name for name, gap in gaps.items() if gap and gap.verdict(metric.margin / metric.points) == "better"]


def _left_out(unlearned: Sequence[str], averaged: Sequence[str]) -> str:
    """
    >>> _left_out(["lra-pathfinder"], ["lra-text", "lra-image"])
    'softmax did not learn lra-pathfinder: the average is over the other 2 tasks.'
    """
    if not unlearned:
        return ""
    rest = f"the average is over the other {len(averaged)} tasks" if averaged else "there is no average"
    return f"{REFERENCE} did not learn {listed(sorted(unlearned))}: {rest}."


def _common_metric(table: ResultTable, name: str, board_keys: list[BoardKey]) -> Metric:
    """The metric of all tasks; raises SelectionError where the board_keys must not be mixed."""
    if not board_keys:
        raise SelectionError(f"no Records here of a task of the suite {name}; leave out --suite, or --task beside it")
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


def _notes(
    table: ResultTable,
    board_keys: list[BoardKey],
    best: Mapping[str, tuple[str, Interval]],
    contrasts: Mapping[str, Contrasts],
) -> Iterator[Note]:
    by_fidelity: dict[str, list[str]] = {}
    for board_key in board_keys:
        by_fidelity.setdefault(board_key.fidelity, []).append(board_key.task)
    data = "; ".join(f"{fidelity}: {', '.join(tasks)}" for fidelity, tasks in by_fidelity.items())
    yield note("data", kind="warning" if "surrogate" in by_fidelity else "fact", data=data)
    runs = [run for board_key in board_keys for run in board_key.runs(table, "train", "baseline")]
    yield from reduced_notes(runs)
    if board_keys[0].selection == "test":
        yield note("selection")
    # that the model without attention learned nothing is no news
    partly = {
        task: sorted(name for name, one in found.scores.items() if name != NO_ATTENTION and not all(one.learned))
        for task, found in sorted(contrasts.items())
    }
    if any(partly.values()):
        named = "; ".join(f"{task}: {some(names)}" for task, names in partly.items() if names)
        yield note("learned", learned=named)
    yield from repetition_notes(table, board_keys)
    if best:
        named = ", ".join(f"{task} {name}" for task, (name, _) in sorted(best.items()))
        text = f"the best predictor without attention, by task: {named}"
        yield Note(topic=TRIVIAL, kind="method", text=text)
    yield from version_notes(table, runs, [])


Rows = Callable[[ResultRow], bool]


def of_one_version(table: ResultTable, board_keys: Sequence[BoardKey]) -> tuple[ResultTable, dict[str, str]]:
    """The table in which trainings on these boards are of one version, and each variant of one code of its own.

    The version: the newest of lane and objective at which the reference and two others are complete on all tasks, or
    that at which most are. The code of a variant: the newest with which it is complete on all tasks. Second, by name,
    why a variant whose code differs between tasks, and is complete with none, has no average.
    """
    places = {(key.task, key.preset, key.fidelity, key.protocol, key.selection) for key in board_keys}

    def asked(row: ResultRow) -> bool:
        return row.lane == "train" and (row.task, row.preset, row.fidelity, row.protocol, row.selection) in places

    versions = sorted({harness_version(row) for row in table.rows if asked(row)}, key=version_order)
    kept: Rows = lambda row: True  # noqa: E731
    if len(versions) > 1:
        # of equals the newest
        candidates = [(table.only(_of(each, asked)), _of(each, asked)) for each in reversed(versions)]
        table, kept = max(candidates, key=lambda each: _completeness(each[0], board_keys))
    codes, differing = _codes(table, board_keys)
    if codes:
        table = table.only(
            lambda row: kept(row) and (not asked(row) or row.variant_code == codes.get(row.variant, row.variant_code))
        )
    return table, differing


def _of(version: str, asked: Rows) -> Rows:
    return lambda row: not asked(row) or harness_version(row) == version


def _completeness(table: ResultTable, board_keys: Sequence[BoardKey]) -> int:
    found = set.intersection(*(complete_variants(key.runs(table, "train")) for key in board_keys))
    return min(len(found) - 1, 2) if REFERENCE in found else 0


def _codes(table: ResultTable, board_keys: Sequence[BoardKey]) -> tuple[dict[str, str], dict[str, str]]:
    """By variant, the code to average where its code differs between tasks; and why there is none for the others."""
    current: dict[str, dict[str, str]] = {}
    tried: dict[tuple[str, str], dict[str, list[ResultRow]]] = {}
    versions = {row.version for key in board_keys for row in key.runs(table, "train")}
    for key in board_keys:
        for row in key.runs(table, "train"):
            current.setdefault(row.variant, {})[key.task] = row.variant_code
        of_board = (key.task, key.preset, key.fidelity, key.protocol)
        for row in (*table.matching(*of_board), *table.passed_over(*of_board)):
            if row.lane == "train" and row.selection == key.selection and row.version in versions:
                tried.setdefault((row.variant, row.variant_code), {}).setdefault(key.task, []).append(row)
    codes, differing = {}, {}
    for variant, by_task in current.items():
        if len(set(by_task.values())) < 2:
            continue
        complete = {
            code: max(row.at for rows in tasks.values() for row in rows)
            for (name, code), tasks in tried.items()
            if name == variant
            and tasks.keys() == by_task.keys()
            and all(variant in complete_variants(rows) for rows in tasks.values())
        }
        if complete:
            codes[variant] = max(complete, key=lambda code: complete[code])
        else:
            differing[variant] = (
                "its code differs between the tasks, or the kernels do, of a processor and of a GPU, and they are not "
                "averaged; run it anew on one kind of device"
            )
    return codes, differing
