"""BoardKey: the values that all rows of one board share, so that they may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from ..core.errors import SelectionError
from ..core.record import Record
from ..core.registry import TASKS, nearest
from ..core.spec import Spec, parse_selection
from ..stats.format import in_a_line
from ..store.rows import ResultRow
from ..store.table import ResultTable


class Filters(TypedDict, total=False):
    """The wanted boards; a filter that is absent or None leaves all. A name alone stands for all its parameters.

    task, preset: such as `lra-text,sweep`. selection: `validation` or `test`. fidelity: `official`, `regenerated`,
    `surrogate`, `own` or `synthetic` data. machine: the id of the machine whose speeds are shown.
    """

    task: str | None
    preset: str | None
    selection: str | None
    fidelity: str | None
    machine: str | None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BoardKey:
    """One task, preset, model selection, data fidelity and protocol; `machine`: where speeds come from, '' for none."""

    task: str
    preset: str
    selection: str
    fidelity: str
    protocol: int
    machine: str = ""

    @property
    def name(self) -> str:
        """One line that no other board has."""
        parts = (self.task, self.preset, self.fidelity, self.selection, f"protocol {self.protocol}", self.machine)
        return "/".join(filter(None, parts))

    def runs(self, table: ResultTable, *lanes: str) -> list[ResultRow]:
        """The current rows of these lanes. Speeds and baselines do not depend on the model selection."""
        return [
            row
            for row in table.matching(self.task, self.preset, self.fidelity, self.protocol)
            if row.lane in lanes
            and (row.selection == self.selection or row.lane != "train")
            and (row.machine == self.machine or row.lane != "time")
        ]

    def last_timing(self, table: ResultTable) -> str:
        """When the newest of its timings started; empty where it has no timing."""
        return max((row.started for row in self.runs(table, "time")), default="")


def board_keys(table: ResultTable, **wanted: Unpack[Filters]) -> list[BoardKey]:
    """The keys of all boards that the Records make, in order.

    Raises SelectionError where a filter leaves none, naming what there is.
    """
    # trials of learning rates are on no board
    rows: Sequence[ResultRow] = [row for row in table.current if row.lane != "tune"]
    for axis in ("task", "preset", "selection", "fidelity", "machine"):
        asked = wanted.get(axis)
        if isinstance(asked, str):
            rows = _filtered(rows, axis, asked, table)
    trained = {(row.selection, *_shared(row)) for row in rows if row.lane == "train"}
    has_training = {key[1:] for key in trained}
    alone: dict[tuple[str, str, str, int], str] = {}
    machines: dict[tuple[str, str, str, int], set[str]] = {}
    for row in rows:
        if row.lane != "train" and _shared(row) not in has_training:
            alone.setdefault(_shared(row), row.selection)
        if row.lane == "time":
            machines.setdefault(_shared(row), set()).add(row.machine)
    found = [
        BoardKey(task=task, preset=preset, fidelity=fidelity, protocol=protocol, selection=selection, machine=machine)
        for selection, task, preset, fidelity, protocol in {*trained, *((own, *key) for key, own in alone.items())}
        for machine in machines.get((task, preset, fidelity, protocol), [""])
    ]
    return sorted(key for key in found if wanted.get("machine") in (None, key.machine))


def answering(keys: Sequence[BoardKey], records: Sequence[Record]) -> list[BoardKey]:
    """The boards among `keys` that the Records of a run answer: their tasks, presets, selections and machines."""
    asked = {(str(record.cell.task), str(record.cell.preset)) for record in records}
    selections = {record.cell.selection for record in records if record.cell.lane == "train"}
    machines = {record.measured_on for record in records if record.cell.lane == "time"}
    return [
        key
        for key in keys
        if (key.task, key.preset) in asked
        and (not selections or key.selection in selections)
        # what was only trained may have been timed on any machine
        and (not machines or key.machine in machines | {""})
    ]


def _shared(row: ResultRow) -> tuple[str, str, str, int]:
    """The parts of a board key that rows of every lane have."""
    return row.task, row.preset, row.fidelity, row.protocol


def _filtered(rows: Sequence[ResultRow], axis: str, asked: str, table: ResultTable) -> list[ResultRow]:
    # a machine is asked for its speeds, a selection for what was trained; rows of other lanes stay
    lane = {"machine": "time", "selection": "train"}.get(axis)
    there = {getattr(row, axis) for row in rows if axis != "machine" or row.lane == lane}
    kept = {value for value in there if _matches(value, axis, asked)}
    if not kept and axis == "task":
        kept = there & _without_defaults(asked)
    if not kept:
        # a name alone asks for all of its parameters, of which a sweep has dozens
        names = {Spec.parse(value).name for value in there} if axis in ("task", "preset") else there
        near = nearest(asked, names)
        if axis == "machine":
            names = {f"{name} ({table.machines[name].words})" for name in names}
        known = in_a_line(names) or "none"
        raise SelectionError(f"no Records of {axis} {asked!r}{near}; there are Records of: {known}")
    return [row for row in rows if getattr(row, axis) in kept or (lane is not None and row.lane != lane)]


def _without_defaults(asked: str) -> set[str]:
    """The tasks as Records name them: `sweep[length=1024]` is `sweep`. Code of others is not imported for it."""
    own = {entry.name for entry in TASKS.entries() if not TASKS.is_foreign(entry.name)}
    return {str(TASKS.resolve(spec)) for spec in parse_selection(asked) if spec.name in own}


def _matches(value: str, axis: str, asked: str) -> bool:
    if axis not in ("task", "preset"):
        return value == asked
    return any(
        value == str(spec) or (not spec.parameters and Spec.parse(value).name == spec.name)
        for spec in parse_selection(asked)
    )
