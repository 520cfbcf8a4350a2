"""Frame: Records as two tables, where what a newer Record or newer code has replaced is marked stale."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import pandas as pd

from ..core.protocol import VERSION_ZERO
from ..core.record import Machine, Measurement, Record
from .rows import HeadMeasurement, ResultRow

_CELL = (
    "key", "variant", "task", "preset", "seed", "lane", "selection", "protocol", "outcome", "reason", "machine",
    "fidelity", "source", "notes", "counts", "version", "data_code", "variant_code", "metric", "block", "setting",
    "implementation", "artifacts", "started", "seconds",
)  # fmt: skip

HEAD = ("at", "name", "attention", "layer", "head", "value")

_COMPARABLE = ["task", "preset", "selection", "protocol", "lane", "place"]


class Measurements(Protocol):
    """The measurements of all Records, by the row of the Record in `ResultTable.cells`."""

    @property
    def heads(self) -> pd.DataFrame:
        """One row per number of one head: `at`, ascending, `name`, `attention` (its kind), `layer`, `head`, `value`."""

    def of(self, at: int) -> Mapping[str, Sequence[Measurement]]:
        """Those over a whole model, by name, in the Record of row `at`."""


@dataclass(frozen=True)
class InMemoryMeasurements:
    """Numbers at hand."""

    heads: pd.DataFrame
    overall: Mapping[int, Mapping[str, Sequence[Measurement]]]

    def of(self, at: int) -> Mapping[str, Sequence[Measurement]]:
        return self.overall.get(at, {})


@dataclass(frozen=True, eq=False)
class ResultTable:
    """`cells`: one row per Record in the order of starting; `stale` says why a row no longer counts, else is empty.

    A Frame from the cache has the rows that count alone. `replaced`: how many do not, by task, preset and reason.
    """

    cells: pd.DataFrame
    numbers: Measurements
    machines: Mapping[str, Machine]
    replaced: Mapping[tuple[str, str, str], int] = field(default_factory=dict)

    @cached_property
    def current(self) -> pd.DataFrame:
        kept = self.cells[self.cells["stale"] == ""]
        # rows are taken from it a few at a time, which plain objects do far faster than packed text
        return kept.astype({name: object for name in kept.columns if kept[name].dtype == "str"})

    def answering(self, *shared: object) -> pd.DataFrame:
        """The current cells of one task, preset, fidelity and protocol."""
        return self._by_question.get(shared, self.current.iloc[:0])

    @cached_property
    def _by_question(self) -> dict[tuple[object, ...], pd.DataFrame]:
        return dict(iter(self.current.groupby(["task", "preset", "fidelity", "protocol"])))

    def runs(self, *shared: object) -> Sequence[ResultRow]:
        """As `answering`, as plain rows, in the order of starting."""
        return self._runs.get(shared, ())

    @cached_property
    def _runs(self) -> dict[tuple[object, ...], list[ResultRow]]:
        columns = [self.current.index, *(self.current[name] for name in ResultRow._fields[1:])]
        found: dict[tuple[object, ...], list[ResultRow]] = {}
        for run in map(ResultRow._make, zip(*(column.tolist() for column in columns), strict=True)):
            found.setdefault((run.task, run.preset, run.fidelity, run.protocol), []).append(run)
        return found

    def heads_of(self, names: Sequence[str], runs: Iterable[ResultRow]) -> Iterator[HeadMeasurement]:
        """The finite numbers of single heads that have one of these names, in the order of the rows."""
        places, of_names, kinds, layers, heads, values = self._heads
        for run in sorted(runs):
            for at in range(bisect_left(places, run.at), bisect_right(places, run.at)):
                if of_names[at] in names and math.isfinite(values[at]):
                    yield HeadMeasurement(run, of_names[at], kinds[at], layers[at], heads[at], values[at])

    @cached_property
    def _heads(self) -> list[list[Any]]:
        return [self.numbers.heads[name].tolist() for name in HEAD]

    def key(self, at: int) -> str:
        """The key of the Cell of row `at`."""
        return self._keys[at]

    @cached_property
    def _keys(self) -> list[str]:
        return self.cells["key"].tolist()  # type: ignore[no-any-return]

    def number(self, name: str, at: int, **where: object) -> Measurement | None:
        """The first measurement `name` of the Record in row `at` whose `where` has these entries."""
        found = self.numbers.of(at).get(name, ())
        if not where:
            return found[0] if found else None
        for measurement in found:
            if where.items() <= measurement.where.items():
                return measurement
        return None

    def values(self, name: str, rows: Iterable[int], **where: object) -> list[float]:
        """The finite values of that name, one a Record, in the order of the rows."""
        found = (self.number(name, at, **where) for at in rows)
        return [m.value for m in found if m is not None and math.isfinite(m.value)]


def table_of(records: Iterable[Record]) -> ResultTable:
    """The tables of `records`. Of one cell on one machine the newest counts; of one variant and task the newest code.

    Accuracy may come from any machine; speeds are kept apart by machine, and so is their staleness.
    """
    rows: list[dict[str, Any]] = []
    heads: list[tuple[Any, ...]] = []
    overall: dict[int, dict[str, list[Measurement]]] = {}
    machines: dict[str, Machine] = {}
    for at, record in enumerate(sorted(records, key=lambda r: r.started)):
        rows.append(_row(record))
        machines[record.machine.id] = record.machine
        for m in record.measurements:
            if m.where.get("layer") is None and m.where.get("head") is None:
                overall.setdefault(at, {}).setdefault(m.name, []).append(m)
            heads += [(at, m.name, *each) for each in by_head(m.where, m.value, m.samples)]
    cells = pd.DataFrame(rows, columns=list(_CELL))
    # a Record that failed before its data was there goes with the data that its question had last
    cells["fidelity"] = cells["fidelity"].replace("", None)
    known = cells.groupby(["task", "preset", "selection", "protocol"])["fidelity"].transform("last")
    cells["unplaced"] = cells["fidelity"].isna()
    cells["fidelity"] = cells["fidelity"].fillna(known).fillna("unknown")
    cells["stale"] = _staleness(cells)
    old = cells[cells["stale"] != ""].groupby(["task", "preset", "stale"]).size()
    replaced = {(str(task), str(preset), str(why)): int(count) for (task, preset, why), count in old.items()}
    return ResultTable(
        cells, InMemoryMeasurements(pd.DataFrame(heads, columns=list(HEAD)), overall), machines, replaced
    )


def by_head(where: Mapping[str, Any], value: float, samples: Sequence[float]) -> Iterator[tuple[str, int, int, float]]:
    """Kind of attention, layer, head and value of each head that a measurement tells of.

    A number is of one head, or, where a model has several kinds of attention, its samples are the heads of a layer.
    """
    kind, layer, head = (where.get(name) for name in ("attention", "layer", "head"))
    if layer is None:
        return
    if head is not None:
        yield kind or "", layer, head, value
    elif kind is not None:
        yield from ((kind, layer, at, each) for at, each in enumerate(samples))


def _row(record: Record) -> dict[str, Any]:
    cell, data = record.cell, record.data
    code, _, variant_code = record.digest.rpartition("-")
    # of version 0, the hash of the harness tells Records apart as the hash of the data does
    data_code = code.rpartition("-")[2] if record.version != VERSION_ZERO else code
    return {
        "key": record.key, "variant": str(cell.variant), "task": str(cell.task), "preset": str(cell.preset),
        "seed": cell.seed, "lane": cell.lane, "selection": cell.selection, "protocol": cell.protocol,
        "outcome": str(record.outcome), "reason": record.reason, "machine": record.machine.id,
        "fidelity": data.fidelity if data else "", "source": data.source if data else "",
        "notes": data.notes if data else (), "counts": data.counts if data else {},
        "version": record.version, "data_code": data_code, "variant_code": variant_code,
        "metric": record.metric, "block": record.block,
        "setting": record.setting, "implementation": record.implementation, "artifacts": record.artifacts,
        "started": record.started, "seconds": record.seconds,
    }  # fmt: skip


def _staleness(cells: pd.DataFrame) -> pd.Series[str]:
    stale = pd.Series("", index=cells.index, dtype=object)
    if cells.empty:
        return stale
    stale[cells.duplicated(["key", "machine"], keep="last")] = "a newer Record of the same cell on this machine"
    table = cells.assign(
        place=cells["machine"].where(cells["lane"] == "time", ""),
        setting_text=[json.dumps(s, sort_keys=True, default=str) if s else None for s in cells["setting"]],
        # a Record without data says nothing of the data's source
        data_code=cells["data_code"].where(~cells["unplaced"], None),
    )
    comparable = [*_COMPARABLE, "fidelity"]
    # a preset means one thing: what was timed under another is not put beside what is trained now
    meaning = [key for key in comparable if key not in ("lane", "place")]
    for column, keys, reason in (
        ("setting_text", meaning, "the preset meant another setting then"),
        ("version", comparable, "made by another version of the lane, the objective or the task"),
        ("data_code", comparable, "the code or the data of the task has changed since"),
        ("variant_code", [*comparable, "variant"], "the code of the variant has changed since"),
    ):
        fresh = table[stale == ""]
        newest = fresh.groupby(keys)[column].transform("last")
        changed = fresh[column].notna() & (fresh[column] != newest)
        stale[changed[changed].index] = reason
    return stale
