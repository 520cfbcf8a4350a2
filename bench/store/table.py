"""ResultTable: Records as rows, where those that do not count say why."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from ..core.cell import VERSION_ZERO
from ..core.metrics import Metric
from ..core.record import Machine, Measurement, Measurements, Outcome, Record
from ..core.spec import Spec
from .rows import OTHER_TASKS, HeadMeasurement, ResultRow, grouped, installed_metric, with_staleness

_EXACTLY = attrgetter("task", "preset", "fidelity", "protocol")


@dataclass(frozen=True, eq=False)
class ResultTable:
    """`records` in the order of arrival; `rows`: one of each, in the same order, the stale ones too.

    `unestablished`: by variant, as `ResultRow.variant` spells it, why its implementation is not established, such as
    "its positive control was never run". Such a variant has no place and no verdict on any board.
    """

    records: Sequence[Record]
    rows: Sequence[ResultRow]
    unestablished: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def current(self) -> list[ResultRow]:
        """The rows that count."""
        return [row for row in self.rows if not row.stale]

    @cached_property
    def machines(self) -> dict[str, Machine]:
        """The machines by id, and by the id with the threads of timings, as the newest Record describes each."""
        by_id = {record.machine.id: record.machine for record in self.records}
        return by_id | {record.measured_on: record.machine for record in self.records}

    @cached_property
    def replaced(self) -> Counter[tuple[str, str, str]]:
        """The number of Records that no longer count, by task, preset and reason."""
        return Counter((row.task, row.preset, row.stale) for row in self.rows if row.stale)

    def versions(self, task: str | None = None, preset: str | None = None) -> Counter[str]:
        """The number of current Records by version of lane, objective and task; None: of all tasks, of all presets.

        `core.protocol` holds the present versions of lanes and objectives.
        """
        return Counter(row.version for row in self.current if task in (None, row.task) and preset in (None, row.preset))

    def matching(self, task: str, preset: str, fidelity: str, protocol: int) -> Sequence[ResultRow]:
        """The current rows of these four, in the order of arrival."""
        return self._matching.get((task, preset, fidelity, protocol), ())

    def passed_over(self, task: str, preset: str, fidelity: str, protocol: int) -> Sequence[ResultRow]:
        """The rows of these four that do not count, in the order of arrival; `stale` says why."""
        return self._passed_over.get((task, preset, fidelity, protocol), ())

    @cached_property
    def _passed_over(self) -> Mapping[Hashable, list[ResultRow]]:
        return grouped((row for row in self.rows if row.stale), _EXACTLY)

    def only(self, keep: Callable[[ResultRow], bool]) -> ResultTable:
        """The table in which of all trainings only those that `keep` accepts can count."""
        fresh = [row._replace(stale="") for row in self.rows]
        kept = with_staleness([row for row in fresh if row.lane != "train" or keep(row)])
        found = {row.at: row for row in kept}
        return replace(self, rows=[found.get(row.at, row._replace(stale=OTHER_TASKS)) for row in fresh])

    @cached_property
    def _matching(self) -> Mapping[Hashable, list[ResultRow]]:
        return grouped(self.current, _EXACTLY)

    def trials(self, task: str, fidelity: str, protocol: int) -> Sequence[ResultRow]:
        """The current trials of learning rates, of whatever preset."""
        return self._trials.get((task, fidelity, protocol), ())

    @cached_property
    def _trials(self) -> Mapping[Hashable, list[ResultRow]]:
        trials = (row for row in self.current if row.lane == "tune")
        return grouped(trials, attrgetter("task", "fidelity", "protocol"))

    @cached_property
    def measured(self) -> list[Measurements]:
        """The measurements of each row."""
        return [Measurements.of(record.measurements) for record in self.records]

    def named(self, name: str, at: int) -> list[Measurement]:
        """The measurements of that name over a whole model in the Record of row `at`."""
        measured = self.measured[at]
        return [measured[place] for place in measured.labels.places.get(name, ())]

    def number(self, name: str, at: int, **where: object) -> Measurement | None:
        """The first measurement `name` of the Record in row `at` whose `where` has these entries (`Labels.first`)."""
        measured = self.measured[at]
        place = measured.labels.first(name, where)
        return None if place is None else measured[place]

    def values(self, name: str, rows: Iterable[int], **where: object) -> list[float]:
        """The finite values of that name, one a Record, in the order of the rows."""
        found: list[float] = []
        labels, place = None, None
        for measured in map(self.measured.__getitem__, rows):
            # rows of one kind share their labels
            if measured.labels is not labels:
                labels = measured.labels
                place = labels.first(name, where)
            if place is not None and math.isfinite(value := measured.values[place]):
                found.append(value)
        return found

    def heads_of(self, names: Sequence[str], rows: Iterable[ResultRow]) -> Iterator[HeadMeasurement]:
        """The finite values of single heads that have one of these names, in the order of the rows.

        A measurement is of one head, or, where a model has several kinds of attention, its samples are the heads of a
        layer.
        """
        for row in sorted(rows, key=attrgetter("at")):
            measured = self.measured[row.at]
            for at, (name, _, where) in enumerate(measured.labels):
                if name not in names:
                    continue
                kind, layer, head = (where.get(axis) for axis in ("attention", "layer", "head"))
                if layer is None or (head is None and kind is None):
                    continue
                own, samples = measured.values[at], measured.samples[at]
                for place, value in [(head, own)] if head is not None else enumerate(samples):
                    if math.isfinite(value):
                        yield HeadMeasurement(row, name, kind or "", layer, place, value)


def table_of(records: Iterable[Record]) -> ResultTable:
    """The table of `records`, which stand in the order of arrival; `store.versions` says which of them count.

    Accuracy may come from any machine; speeds are kept apart by machine, and so is their staleness.
    """
    with garbage_collection_paused():
        ordered = tuple(map(_as_counted, records))
        # a Record that failed before its data was there goes with the data that its board key had last
        known = {_without_data(r): r.data.fidelity for r in ordered if r.data and r.data.fidelity}
        metrics = _disputed_metrics(ordered)
        rows = [_row(at, record, known) for at, record in enumerate(ordered)]
        for record, row in zip(ordered, rows, strict=True):
            if row.metric and record.cell.task in metrics:
                rows[row.at] = row._replace(metric=metrics[record.cell.task])
        return ResultTable(ordered, with_staleness(rows))


def _as_counted(record: Record) -> Record:
    """A Record without the numbers of a wrong variant, which were asked for in spite of the gate."""
    wrong = record.outcome is Outcome.INCORRECT and record.measurements
    return replace(record, measurements=(), artifacts={}) if wrong else record


def _disputed_metrics(records: Iterable[Record]) -> dict[Spec, Metric]:
    """The metric of each task whose Records disagree on it: that of the installed task, or the one that came first.

    Otherwise one Record with another chance or direction would decide who has learned.
    """
    stated: dict[Spec, list[Metric]] = {}
    for record in records:
        if record.metric is not None and record.metric not in stated.setdefault(record.cell.task, []):
            stated[record.cell.task].append(record.metric)
    return {task: installed_metric(task) or found[0] for task, found in stated.items() if len(found) > 1}


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Inside, Python looks for no cycles: Records hold none, and it would walk over all of them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _without_data(record: Record) -> Hashable:
    cell = record.cell
    return cell.task, cell.preset, cell.selection, cell.protocol


def _row(at: int, record: Record, known: Mapping[Hashable, str]) -> ResultRow:
    cell, data = record.cell, record.data
    fidelity = data.fidelity if data else ""
    code, _, variant_code = record.digest.rpartition("-")
    # of version 0, the hash of the harness tells Records apart as the hash of the data does
    data_code = code.rpartition("-")[2] if record.version != VERSION_ZERO else code
    return ResultRow(
        at=at,
        key=record.key,
        variant=str(cell.variant),
        task=str(cell.task),
        preset=str(cell.preset),
        seed=cell.seed,
        lane=cell.lane,
        selection=cell.selection,
        protocol=cell.protocol,
        outcome=str(record.outcome),
        reason=record.reason,
        machine=record.measured_on,
        on_gpu=bool(record.machine.accelerators),
        fidelity=fidelity or known.get(_without_data(record), "unknown"),
        unplaced=not fidelity,
        source=data.source if data else "",
        notes=data.notes if data else (),
        counts=data.counts if data else {},
        version=record.version,
        data_code=data_code,
        variant_code=variant_code,
        metric=record.metric,
        block=record.block,
        setting=record.setting,
        implementation=record.implementation,
        artifacts=record.artifacts,
        started=record.started,
        seconds=record.seconds,
    )
