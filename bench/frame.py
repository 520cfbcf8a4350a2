"""Frame: Records as two tables, where what a newer Record or newer code has replaced is marked stale."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .record import Machine, Record

WHERE = ("split", "layer", "head", "block", "length", "examples")

_CELL = (
    "key", "variant", "task", "preset", "seed", "lane", "selection", "protocol", "outcome", "reason", "machine",
    "fidelity", "source", "notes", "counts", "code", "variant_code", "block", "setting", "artifacts", "started",
    "seconds",
)  # fmt: skip

_COMPARABLE = ["task", "preset", "selection", "protocol", "lane", "place"]


@dataclass(frozen=True, slots=True)
class Frame:
    """`cells`: one row per Record in the order of starting; `stale` says why a row no longer counts, else is empty.

    `measurements`: one row per number; `at` is the row of its Record in `cells`. A number over a whole model has
    neither layer nor head.
    """

    cells: pd.DataFrame
    measurements: pd.DataFrame
    machines: dict[str, Machine]

    @property
    def current(self) -> pd.DataFrame:
        return self.cells[self.cells["stale"] == ""]

    def numbers(self, name: str, cells: pd.DataFrame, **where: object) -> pd.DataFrame:
        """The measurements `name` of `cells` over whole models whose `where` has these entries, by row of `cells`."""
        table = self.measurements
        chosen = (table["name"] == name) & table["layer"].isna() & table["head"].isna() & table["at"].isin(cells.index)
        for key, value in where.items():
            chosen &= table[key] == value
        return table[chosen].drop_duplicates("at").set_index("at")

    def values(self, name: str, cells: pd.DataFrame, **where: object) -> list[float]:
        """The finite values of `numbers`, in the order of the cells."""
        found: pd.Series[float] = self.numbers(name, cells, **where)["value"].sort_index()
        return [float(value) for value in found[found.abs() < float("inf")]]


def frame_of(records: Iterable[Record]) -> Frame:
    """The tables of `records`. Of one cell on one machine the newest counts; of one variant and task the newest code.

    Accuracy may come from any machine; speeds are kept apart by machine, and so is their staleness.
    """
    rows: list[dict[str, Any]] = []
    numbers: list[tuple[Any, ...]] = []
    machines: dict[str, Machine] = {}
    for at, record in enumerate(sorted(records, key=lambda r: r.started)):
        rows.append(_row(record))
        machines[record.machine.id] = record.machine
        for m in record.measurements:
            numbers.append((at, m.name, m.value, m.samples, *(m.where.get(name) for name in WHERE)))
    cells = pd.DataFrame(rows, columns=list(_CELL))
    measurements = pd.DataFrame(numbers, columns=["at", "name", "value", "samples", *WHERE])
    # a Record that failed before its data was there goes with the data that its question had last
    cells["fidelity"] = cells["fidelity"].replace("", None)
    known = cells.groupby(["task", "preset", "selection", "protocol"])["fidelity"].transform("last")
    cells["unplaced"] = cells["fidelity"].isna()
    cells["fidelity"] = cells["fidelity"].fillna(known).fillna("unknown")
    cells["stale"] = _staleness(cells)
    return Frame(cells, measurements, machines)


def _row(record: Record) -> dict[str, Any]:
    cell, data = record.cell, record.data
    protocol_code, _, rest = record.digest.partition("-")
    task_code, _, variant_code = rest.partition("-")
    return {
        "key": record.key, "variant": str(cell.variant), "task": str(cell.task), "preset": str(cell.preset),
        "seed": cell.seed, "lane": cell.lane, "selection": cell.selection, "protocol": cell.protocol,
        "outcome": str(record.outcome), "reason": record.reason, "machine": record.machine.id,
        "fidelity": data.fidelity if data else "", "source": data.source if data else "",
        "notes": data.notes if data else (), "counts": data.counts if data else {},
        "code": f"{protocol_code}-{task_code}", "variant_code": variant_code, "block": record.block,
        "setting": record.setting, "artifacts": record.artifacts, "started": record.started, "seconds": record.seconds,
    }  # fmt: skip


def _staleness(cells: pd.DataFrame) -> pd.Series[str]:
    stale = pd.Series("", index=cells.index, dtype=object)
    if cells.empty:
        return stale
    stale[cells.duplicated(["key", "machine"], keep="last")] = "a newer Record of the same cell on this machine"
    table = cells.assign(
        place=cells["machine"].where(cells["lane"] == "time", ""),
        setting_text=[json.dumps(s, sort_keys=True, default=str) if s else None for s in cells["setting"]],
        # the data's source is part of the code's digest: a Record without data says nothing of it
        code=cells["code"].where(~cells["unplaced"], None),
    )
    comparable = [*_COMPARABLE, "fidelity"]
    for column, keys, reason in (
        ("setting_text", comparable, "the preset meant another setting then"),
        ("code", comparable, "the code or the data of the task has changed since"),
        ("variant_code", [*comparable, "variant"], "the code of the variant has changed since"),
    ):
        fresh = table[stale == ""]
        newest = fresh.groupby(keys)[column].transform("last")
        changed = fresh[column].notna() & (fresh[column] != newest)
        stale[changed[changed].index] = reason
    return stale
