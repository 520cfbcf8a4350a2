"""The board of a suite: the score on each task, their average, and the number of tasks that count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.errors import SelectionError
from ..core.metrics import Interval, Metric
from ..score.contrasts import Contrast, Contrasts, contrast_ranks, mean_contrast
from ..score.key import BoardKey
from ..score.quality import (
    Predictions,
    SeedScores,
    best_baseline,
    is_unlearned,
    metric_of,
    more_parameters,
    scores_by_variant,
)
from ..stats.format import listed
from ..stats.intervals import Share
from ..stats.scoring import Verdict
from ..store.rows import ResultRow, complete_variants, harness_version, version_order
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Column, Note, Row, TableCell, split_by_rank
from .cells import (
    EMPTY,
    Cell,
    cells_of,
    contrast_cell,
    finished,
    level_cell,
    plain_columns,
    reference_cell,
    share_cell,
    when,
)
from .notes import (
    describe_gaps,
    describe_losses,
    describe_size,
    describe_tasks,
    left_out,
    note,
    nothing_ranked,
    quality_headline,
    some,
    where_better,
)
from .quality_notes import comparison_notes, reduced_notes, short_preset, unsettled_notes
from .version_notes import left_behind_notes, outdated, repetition_notes, takeover_notes, version_notes

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
    context = SuiteContext.of(table, board_keys, metric, predictions, wanted, declared, differing)
    columns = _columns(context, suite)
    names = [name for name in context.missing if name in context.competing]
    rows = {
        name: Row(name=name, entries=cells_of(columns, name), reason=context.missing[name] or NO_RIVAL)
        for name in names
    }
    complete = context.complete
    contrasts = next(iter(context.contrasts.values()))
    order = contrast_ranks(complete, context.gap, contrasts.pairs) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    baselines = [
        Row(name=name, entries=cells_of(columns, name), reason=reason)
        for name, reason in context.missing.items()
        if name not in context.competing
    ]
    if context.best:
        baselines.append(Row(name=TRIVIAL, entries=cells_of(columns, TRIVIAL)))
    gaps = context.gaps_of(complete)
    preset = board_keys[0].preset
    answer = _answer(context, gaps) if ranked else _advice(unranked, suite, preset, len(context.tasks))
    old = outdated([run for board_key in board_keys for run in board_key.runs(table, "train", "baseline")])
    board = Board(
        name=f"suite {suite}/{preset}/{board_keys[0].selection}",
        title=f"suite {suite}, preset {preset}",
        question=f"Which attention {metric.question} over the {len(context.tasks)} tasks of {suite} "
        f"({short_preset(preset)})?",
        headline=" ".join(filter(None, [left_out(context.unlearned, context.averaged), answer, old])),
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        baselines=tuple(baselines),
        notes=(
            *_notes(table, board_keys, context.best, context.contrasts),
            *comparison_notes(contrasts, complete, list(gaps.values()), metric, average=True),
            *left_behind_notes(table, board_keys, rows),
        ),
        ranked_by="average",
    )
    return finished(board)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteContext:
    """The facts that the rows of a suite's board share.

    `tasks`: those of the suite; `unlearned`: those that the reference did not learn, and which no average has.
    `competing`: who may be ranked; the model without attention competes where the suite names it. `missing`: by variant
    why it has no average, empty where it has one. `best`: by task the best trivial predictor and its level. `levels`:
    by task, then by variant or `TRIVIAL`. `parameters`: by task and variant, the share more than the reference has.
    """

    metric: Metric
    tasks: Sequence[str]
    unlearned: Sequence[str]
    scores: Mapping[str, Mapping[str, SeedScores]]
    contrasts: Mapping[str, Contrasts]
    competing: Collection[str]
    missing: Mapping[str, str]
    best: Mapping[str, tuple[str, Interval]]
    levels: Mapping[str, Mapping[str, Interval]]
    parameters: Mapping[tuple[str, str], float]

    @classmethod
    def of(
        cls,
        table: ResultTable,
        board_keys: Sequence[BoardKey],
        metric: Metric,
        predictions: Predictions,
        wanted: Collection[str],
        declared: Collection[str] | None,
        differing: Mapping[str, str],
    ) -> SuiteContext:
        scores = {key.task: scores_by_variant(table, key, predictions) for key in board_keys}
        contrasts = {task: Contrasts(found, declared) for task, found in scores.items()}
        tasks = sorted({*scores, *wanted})
        names = sorted({name for found in scores.values() for name in found})
        excluded = set() if declared is not None and NO_ATTENTION in declared else {NO_ATTENTION}
        best: dict[str, tuple[str, Interval]] = {}
        levels: dict[str, dict[str, Interval]] = {}
        for key in board_keys:
            found = scores[key.task]
            levels[key.task] = {name: contrasts[key.task].level_of(name) for name, own in found.items() if own.seeds}
            baseline = best_baseline(table, key, metric, predictions)
            if baseline is not None:
                best[key.task] = baseline
                levels[key.task][TRIVIAL] = baseline[1]
        return cls(
            metric=metric,
            tasks=tasks,
            unlearned=[task for task, found in scores.items() if is_unlearned(found.get(REFERENCE))],
            scores=scores,
            contrasts=contrasts,
            competing=set(names) - excluded,
            missing={name: differing.get(name) or _missing(name, tasks, scores) for name in names},
            best=best,
            levels=levels,
            parameters=more_parameters(table, scores),
        )

    @property
    def averaged(self) -> list[str]:
        """The tasks that the average is over."""
        return [task for task in self.tasks if task not in self.unlearned]

    @property
    def averaging(self) -> list[str]:
        """The variants that have an average."""
        return [name for name, reason in self.missing.items() if not reason] if self.averaged else []

    @property
    def complete(self) -> list[str]:
        """The variants that can be ranked."""
        return [name for name in self.averaging if name in self.competing]

    @property
    def any_failed(self) -> bool:
        """True if a variant learned a task at some seeds only."""
        return any(own.learned_in_part for found in self.scores.values() for own in found.values())

    def gap(self, one: str, other: str, without: str = "") -> Contrast:
        """The mean difference over the tasks of the average, but for the one left out."""
        return mean_contrast([self.contrasts[task].between(one, other) for task in self.averaged if task != without])

    def gaps_of(self, names: Collection[str]) -> dict[str, Contrast]:
        """The differences of these variants from the reference, without its own; none where it has no average."""
        rest = [name for name in names if name != REFERENCE] if REFERENCE in self.complete else []
        return {name: self.gap(name, REFERENCE) for name in rest}


def _columns(context: SuiteContext, suite: str) -> list[tuple[Column, Cell]]:
    metric = context.metric
    return [
        *(
            (Column(name=task, title=task, short=task.removeprefix(f"{suite}-"), unit=metric.display_unit,
                    better=metric.better, description=f"test {metric.title}"),
             partial(_level, context, task))
            for task in context.tasks
        ),
        (Column(name="average", title="average", short="mean", unit=metric.display_unit, better=metric.better,
                importance=0, description=f"mean {metric.title} over these tasks",
                note="intervals hold for these tasks and not for others; a ± may differ from that on the task's own "
                "board, where other declared variants lend their variance over seeds"),
         partial(_average, context)),
        (Column(name="gap", title=f"vs {REFERENCE}", short="gap", unit=metric.of_difference, better=metric.better,
                importance=0,
                description=f"mean over tasks of the differences from {REFERENCE}, with its 95 % interval"),
         partial(_difference, context)),
        *when(context.any_failed,
            Column(name="learned", title="learned", unit="seeds", better="higher", importance=1,
                   description="trainings here that learned, with the exact 95 % interval of the share that learns"),
            partial(_learned, context)),
        *when(context.any_failed,
            Column(name="all_seeds", title="all seeds", unit=metric.display_unit, better=metric.better, importance=1,
                   description=f"mean {metric.title} over these tasks and all seeds, whether they learned or not",
                   note="a variant cannot rank above another that has a better mean over all seeds"),
            partial(_over_all_seeds, context)),
        (Column(name="coverage", title="tasks", importance=2, description="tasks that count for this variant"),
         partial(_coverage, context)),
    ]  # fmt: skip


def _level(context: SuiteContext, task: str, name: str) -> TableCell:
    level = context.levels.get(task, {}).get(name)
    return level_cell(context.metric, level, brief=context.metric.value(level.value)) if level else EMPTY


def _average(context: SuiteContext, name: str) -> TableCell:
    has_all = name in context.averaging or (name == TRIVIAL and set(context.averaged) <= set(context.best))
    return _mean_cell(context, [context.levels[task][name].value for task in context.averaged] if has_all else [])


def _over_all_seeds(context: SuiteContext, name: str) -> TableCell:
    has_all = name in context.averaging
    return _mean_cell(context, [context.scores[task][name].mean for task in context.averaged] if has_all else [])


def _mean_cell(context: SuiteContext, values: Sequence[float]) -> TableCell:
    if not values:
        return EMPTY
    mean = sum(values) / len(values)
    return TableCell(text=context.metric.value(mean), value=context.metric.points * mean)


def _difference(context: SuiteContext, name: str) -> TableCell:
    if name == REFERENCE and REFERENCE in context.complete:
        return reference_cell(0.0)
    gaps = context.gaps_of([name] if name in context.averaging else [])
    return contrast_cell(gaps[name]) if name in gaps else EMPTY


def _learned(context: SuiteContext, name: str) -> TableCell:
    if name not in context.averaging:
        return EMPTY
    shares = [context.contrasts[task].share_of(name) for task in context.averaged]
    return share_cell(Share(sum(one.learned for one in shares), sum(one.trained for one in shares)))


def _coverage(context: SuiteContext, name: str) -> TableCell:
    own = [found[name] for found in context.scores.values() if name in found]
    count = len(context.best) if name == TRIVIAL else sum(not each.missing_reason for each in own)
    return TableCell(text=f"{count} of {len(context.tasks)}", value=count)


def _answer(context: SuiteContext, gaps: Mapping[str, Contrast]) -> str:
    """The variants that are better on each task, and on average."""
    metric = context.metric
    verdicts = {name: found.verdict(metric.margin / metric.points) for name, found in gaps.items()}
    missed = describe_gaps([found for name, found in gaps.items() if verdicts[name] == "undecided"], metric)
    # the verdict on one task is that of its own board, which no suite declares
    tasks = [task for task in context.averaged if task in context.scores]
    ahead = {task: _ahead(Contrasts(context.scores[task]), context.complete, metric) for task in tasks}
    competing = [(name, one) for found in context.scores.values() for name, one in found.items()]
    told = quality_headline(
        verdicts,
        metric.margin_words(metric.margin),
        average=True,
        behind=describe_losses(gaps, metric),
        missed=missed,
        unsettled={name for name, one in competing if one.unsettled},
        unestablished={name for name, one in competing if one.unestablished and name in context.competing},
        remarks={name: words for name in gaps if (words := _limits(context, name, verdicts))},
    )
    return f"{where_better(ahead)} {told}".strip()


def _limits(context: SuiteContext, name: str, verdicts: Mapping[str, Verdict]) -> str:
    """The evidence for a variant's place on average: the tasks without which it is open, and added parameters."""
    gap, rest = context.gap(name, REFERENCE), context.averaged if len(context.averaged) > 1 else []
    words = describe_tasks(gap, {task: context.gap(name, REFERENCE, without=task) for task in rest})
    more = max((context.parameters.get((task, name), 0.0) for task in context.averaged), default=0.0)
    return "; ".join([*words, *(describe_size(name, more, verdicts) if gap.is_ahead else [])])


def _advice(unranked: Sequence[Row], suite: str, preset: str, tasks: int) -> str:
    """Why nothing is ranked, and what to run."""
    command = f"`attnbench run --suite {suite} --preset '{preset}'`"
    return (
        f"{nothing_ranked(unranked)} A rank takes all {tasks} tasks: {command} runs those that have this preset. The "
        "board of each task ranks its own rows."
    )


def _ahead(contrasts: Contrasts, names: Sequence[str], metric: Metric) -> list[str]:
    """The variants that are better than the reference on one task."""
    gaps = {name: contrasts.to_reference(name) for name in names}
    return [name for name, gap in gaps.items() if gap and gap.verdict(metric.margin / metric.points) == "better"]


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
    yield from unsettled_notes({task: found.scores for task, found in contrasts.items()})
    yield from takeover_notes(table, board_keys)
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
    """The code of each variant to average where it differs between tasks; and why others have none."""
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
