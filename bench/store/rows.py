"""ResultRow: one Record as boards read it; and which rows count, by version, code and order of arrival."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.cell import LANE_VERSIONS, LEAST_SEEDS, NO_ATTENTION, REFERENCE, VERSION_ZERO
from ..core.entry_points import load_own
from ..core.errors import AttnbenchError
from ..core.files import PACKAGE
from ..core.metrics import RANKING_METRICS, Metric
from ..core.record import Measurement, Outcome, Record
from ..core.registry import TASKS
from ..core.spec import Spec

if TYPE_CHECKING:
    from ...tasks.contract import Problem

PROBLEMS = "attnbench.problems"
"""The entry points of the types of problem."""

SYNTHETIC = PACKAGE / "tasks" / "synthetic"


class ResultRow(NamedTuple):
    """A row of a ResultTable; `at` is its place there.

    `fidelity`: that of its data; a Record without data has that of its board key, and is `unplaced`. `version`,
    `data_code` and `variant_code` are the parts of its digest. `on_gpu`: whether it used one. `stale`: why it no longer
    counts; empty where it does.
    """

    at: int
    key: str
    variant: str
    task: str
    preset: str
    seed: int
    lane: str
    selection: str
    protocol: int
    outcome: str
    reason: str
    machine: str
    on_gpu: bool
    fidelity: str
    unplaced: bool
    source: str
    notes: tuple[str, ...]
    counts: Mapping[str, int]
    version: str
    data_code: str
    variant_code: str
    metric: Metric | None
    block: str
    setting: Mapping[str, Any]
    implementation: str
    artifacts: Mapping[str, str]
    started: str
    seconds: float
    stale: str = ""


class HeadMeasurement(NamedTuple):
    """A value in one head of one Record; `attention`: its kind, where a model has several."""

    run: ResultRow
    name: str
    attention: str
    layer: int
    head: int
    value: float


def newest(rows: Iterable[ResultRow], *names: str) -> list[ResultRow]:
    """Keep the last of those that agree in these fields, in the order in which they stand."""
    key = attrgetter(*names)
    found: dict[object, ResultRow] = {}
    for row in rows:
        found.pop(key(row), None)
        found[key(row)] = row
    return list(found.values())


REPEATED = "measured again; the first result of a cell counts"
RETRIED = "a newer Record of the same cell on this machine"
SETTING = "measured with an older definition of the preset"
VERSION = "made by another version of the lane, the objective or the task"
DATA = "the code or the data of the task has changed since"
CODE = "of other code of the variant, or of the kernels of another kind of device"
FEWER = "of newer code of the variant, at fewer seeds than the code that counts"
INCOMPLETE = "of a newer version that is not yet complete for softmax and two others"
OTHER_TASKS = "of another version than the other tasks of the suite"
TOO_NEW = "of a newer version than the installed one"

NOT_RANKED = (SETTING, VERSION, DATA, CODE, FEWER, INCOMPLETE, OTHER_TASKS, TOO_NEW)
"""Reasons that measuring anew removes."""

# a preset means one thing: timings under another are not put beside what is trained now
_ACROSS_LANES = attrgetter("task", "preset", "selection", "protocol", "fidelity")


def with_staleness(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows in the same order; those that do not count say why. Each rule sees what all before it have left."""
    settings = _settings(rows)
    stated = {(row.version, row.lane, row.task) for row in rows}
    too_new = {each for each in stated if is_too_new(*each)}
    found = [row._replace(stale=TOO_NEW) if (row.version, row.lane, row.task) in too_new else row for row in rows]
    found = _once_a_cell(found, settings)
    found = _newest_complete(found, _ACROSS_LANES, lambda row: settings.get(row.at), SETTING)
    found = _newest_complete(found, _comparable, attrgetter("version"), VERSION)
    # a Record without data says nothing of the data's source
    found = _newest_complete(found, _comparable, lambda row: None if row.unplaced else row.data_code, DATA)
    return _newest_code(found)


def harness_version(row: ResultRow) -> str:
    """The version of lane and objective, which the tasks of a suite share.

    >>> from types import SimpleNamespace as Row
    >>> harness_version(Row(version="lane1.objective2.task3")), harness_version(Row(version="version 0"))
    ('lane1.objective2', 'version 0')
    """
    return row.version.rpartition(".task")[0] or row.version


def is_too_new(version: str, lane: str, task: str) -> bool:
    """True if a digest states a version of lane, objective or task that the installed code does not have yet.

    >>> is_too_new("lane1.objective1.task1", "train", "recall"), is_too_new("lane99.task1", "train", "recall")
    (False, True)
    """
    if version == VERSION_ZERO:
        return False
    found = _VERSION.fullmatch(version)
    if found is None:
        return True
    of_lane, of_objective, of_task = (int(number or 0) for number in found.groups())
    if of_lane > LANE_VERSIONS.get(lane, 0) or of_objective > max(one.objective_version for one in load_own(PROBLEMS)):
        return True
    # the task is loaded for a claim alone that is above the version that each task begins with
    return of_task > 1 and of_task > installed_version(task.partition("[")[0])


@cache
def installed_version(task: str) -> float:
    """The version of our own task; infinite for a plugin's, which this process does not import, and an unknown one."""
    try:
        return float("inf") if TASKS.is_foreign(task) else int(TASKS.load(task).version)
    except AttnbenchError:
        return float("inf")


@cache
def installed_ceiling(task: str) -> float | None:
    """The score of a model that solves the task: 1 for our synthetic ones, whose answers are computed; None else."""
    name = Spec.parse(task).name
    try:
        own = None if TASKS.is_foreign(name) else TASKS.source(name)
    except AttnbenchError:
        return None
    return 1.0 if own is not None and own.is_relative_to(SYNTHETIC) else None


@cache
def installed_metric(task: Spec) -> Metric | None:
    """The metric of our own task; None for a plugin's, which this process does not import, and an unknown one."""
    try:
        return None if TASKS.is_foreign(task.name) else TASKS.build(task).metric
    except AttnbenchError:
        return None


_VERSION = re.compile(r"lane(\d{1,9})(?:\.objective(\d{1,9}))?\.task(\d{1,9})")


def complete_variants(rows: Iterable[ResultRow]) -> set[str]:
    """The variants that have trained with a result at seeds 0, 1 and 2."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        if row.outcome == Outcome.OK and row.lane == "train":
            seeds.setdefault(row.variant, set()).add(row.seed)
    return {variant for variant, found in seeds.items() if found >= set(range(LEAST_SEEDS))}


def completeness(rows: Sequence[ResultRow]) -> tuple[int, int]:
    """2 where the reference and two others are complete, 1 with one other, 0 else; by training, then by timings.

    The model without attention is trained with every selection, so that it says nothing of its size.
    """
    timed = {row.variant for row in rows if row.outcome == Outcome.OK and row.lane == "time"}
    both = (names - {NO_ATTENTION} for names in (complete_variants(rows), timed))
    trained, timed_too = (min(len(names) - 1, 2) if REFERENCE in names else 0 for names in both)
    return trained, timed_too


def version_order(version: str) -> tuple[int, ...]:
    """
    >>> version_order("lane1.objective2.task10") > version_order("lane1.objective2.task9") > version_order("version 0")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)))


def _once_a_cell(rows: list[ResultRow], settings: Mapping[int, int]) -> list[ResultRow]:
    """Keep the first result of a cell, made by one version, on whatever machine; a failure counts only without any.

    Timings stand beside those that shared their rounds, so there the newest of each machine counts.
    """

    def cell(row: ResultRow) -> Hashable:
        if row.lane == "time":
            return row.key, row.machine
        version = row.version, row.data_code, row.variant_code
        return row.key, row.fidelity, *version, settings.get(row.at)

    found = {row.at: row for row in rows}
    for group in grouped((row for row in rows if not row.stale), cell).values():
        results = [row for row in group if row.outcome == Outcome.OK]
        counted = results[0] if results and group[0].lane != "time" else group[-1]
        for row in group:
            if row is not counted:
                # a result that would replace an earlier one is a repetition; failures and timings are superseded
                repeated = row.outcome == Outcome.OK and row.lane != "time"
                found[row.at] = row._replace(stale=REPEATED if repeated else RETRIED)
    return [found[row.at] for row in rows]


def _newest_complete(
    rows: list[ResultRow],
    group: Callable[[ResultRow], Hashable],
    value: Callable[[ResultRow], Any],
    reason: str,
) -> list[ResultRow]:
    """In each group only the rows of one value stay: of those that are most complete, the newest.

    A value is as new as the first Record that has it; of versions the numbers decide. None has no say and stays.
    """
    found = {row.at: row for row in rows}
    for members in grouped((row for row in rows if not row.stale), group).values():
        by_value = grouped((row for row in members if value(row) is not None), value)
        if len(by_value) < 2:
            continue
        age = {each: (version_order(own[0].version), own[0].at) for each, own in by_value.items()}
        kept = max(by_value, key=lambda each: (completeness(by_value[each]), age[each]))
        for each, own in by_value.items():
            for row in own if each != kept else ():
                found[row.at] = row._replace(stale=reason if age[each] < age[kept] else INCOMPLETE)
    return [found[row.at] for row in rows]


def _newest_code(rows: list[ResultRow]) -> list[ResultRow]:
    """Keep the newest code of each variant among those tried at the most seeds, or of all where none was at three.

    So a later set of fewer seeds never replaces the first. Code is as new as the last Record of it, repetitions among
    them: a change that was taken back leaves the older code the newest, once any cell of it is measured again. Failures
    count as tried: code that fails does not fall back to older code by itself. The reference, which all others need,
    stays at code that has results. The kernels of a processor and of a GPU are two codes of a variant.
    """
    found = {row.at: row for row in rows}
    last = {_code_of(row): row.at for row in rows if row.stale in ("", REPEATED, RETRIED)}
    fresh = (row for row in rows if not row.stale)
    for members in grouped(fresh, lambda row: (*_comparable(row), row.variant)).values():
        by_code = grouped(members, attrgetter("variant_code"))
        if len(by_code) < 2:
            continue
        age = {code: max(last[_code_of(row)] for row in own) for code, own in by_code.items()}
        kept = max(by_code, key=lambda code: (_tried(by_code[code]), age[code]))
        for code, own in by_code.items():
            for row in own if code != kept else ():
                found[row.at] = row._replace(stale=CODE if age[code] < age[kept] else FEWER)
    return [found[row.at] for row in rows]


def _code_of(row: ResultRow) -> Hashable:
    return *_comparable(row), row.variant, row.version, row.data_code, row.variant_code


def _tried(rows: Sequence[ResultRow]) -> int:
    """At how many of the seeds 0, 1, 2, …: 0 for fewer than three; of the reference those with a result."""
    if rows[0].lane != "train":
        return 0
    results = rows[0].variant == REFERENCE
    seeds = {row.seed for row in rows if row.outcome == Outcome.OK or not results}
    count = next(at for at in range(len(seeds) + 1) if at not in seeds)
    return count if count >= LEAST_SEEDS else 0


def taken_over(table_rows: Iterable[ResultRow]) -> dict[str, tuple[str, str, int]]:
    """By variant whose complete older code no longer counts: the older code, since when it stood, its seeds."""
    older: dict[tuple[str, str], list[ResultRow]] = {}
    for row in table_rows:
        if row.stale == CODE and row.lane == "train":
            older.setdefault((row.variant, row.variant_code), []).append(row)
    complete = {key: rows for key, rows in older.items() if _tried(rows)}
    return {
        variant: (code, min(row.started for row in rows)[:10], len({row.seed for row in rows}))
        for (variant, code), rows in complete.items()
    }


def grouped(rows: Iterable[ResultRow], of: Callable[[ResultRow], Hashable]) -> dict[Hashable, list[ResultRow]]:
    """Group rows by `of(row)`, keeping their order."""
    found: dict[Hashable, list[ResultRow]] = {}
    for row in rows:
        found.setdefault(of(row), []).append(row)
    return found


def _comparable(row: ResultRow) -> tuple[Hashable, ...]:
    """Rows with one value of it are to be of one version; speeds by machine."""
    machine = row.machine if row.lane == "time" else ""
    return row.task, row.preset, row.selection, row.protocol, row.lane, machine, row.fidelity


def _settings(rows: Iterable[ResultRow]) -> dict[int, int]:
    """Number the distinct settings of each task's preset, by row; a row without a setting has none."""
    distinct: dict[tuple[str, str], list[tuple[Mapping[str, Any], str]]] = {}
    found = {}
    for row in rows:
        if not row.setting:
            continue
        known = distinct.setdefault((row.task, row.preset), [])
        same = next((at for at, (setting, _) in enumerate(known) if setting == row.setting), None)
        if same is None:
            # a setting that was read from a file has lists for tuples
            text = json.dumps(row.setting, sort_keys=True, default=str)
            same = next((at for at, (_, other) in enumerate(known) if other == text), len(known))
            known.append((row.setting, text))
        found[row.at] = same
    return found


def tested(record: Record) -> Measurement | None:
    """The test result that a board ranks the Record by."""
    metrics = (record.metric,) if record.metric else RANKING_METRICS
    found = (record.first(metric.name, split="test") for metric in metrics)
    return next((measurement for measurement in found if measurement is not None), None)


def is_disputed(one: Measurement, other: Measurement) -> bool:
    """True if two results of one cell are shares that differ by more than test examples and two machines explain.

    Five standard errors of the difference and five points: trainings of one seed on two machines differ by chance too.
    """
    examples = min(each.where.get("examples") or 0 for each in (one, other))
    if one.unit != "fraction" or not examples:
        return False
    mean = min(max((one.value + other.value) / 2, 0.0), 1.0)
    return abs(one.value - other.value) > max(0.05, 5 * math.sqrt(2 * mean * (1 - mean) / examples))


def problem_of(setting: Mapping[str, Any]) -> type[Problem]:
    """The type of problem that a preset is for: the one whose recipe has most fields that only some recipes have.

    >>> problem_of({"layers": 2, "stride": 64}).__name__, problem_of({"layers": 2}).__name__
    ('Language', 'Classification')
    """
    return _problem_with(frozenset(setting))


@cache
def _problem_with(names: frozenset[str]) -> type[Problem]:
    types: tuple[type[Problem], ...] = load_own(PROBLEMS)
    plain = min((problem.recipe for problem in types), key=lambda recipe: len(fields(recipe)))
    shared = {field.name for field in fields(plain)}

    def own_fields(problem: type[Problem]) -> tuple[int, bool]:
        own = sum(field.name in names for field in fields(problem.recipe) if field.name not in shared)
        return own, problem.recipe is plain

    return max(types, key=own_fields)


MUCH_LOAD = 0.5
"""Cores that other processes used, above which a board warns, and ranks no times that needed these cores."""

_SPARE = 0.25
"""Cores by which threads and other processes may exceed the cores that there are."""


def disturbance(record: Record) -> str:
    """The load that took cores from a timing, or empty. A fused kernel loses more by it than plain operators."""
    load, machine = record.first("foreign_load"), record.machine
    if load is None or machine.accelerators or load.value <= MUCH_LOAD:
        return ""
    if machine.threads + load.value <= machine.cores + _SPARE:
        return ""
    return f"other processes used {load.value:.1f} of {machine.cores} cores; --retry on idle cores times it anew"
