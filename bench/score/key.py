"""Question: what all rows of one board share, so that they may be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from ..core.errors import SelectionError
from ..core.spec import Spec, parse_selection
from ..store.rows import ResultRow
from ..store.table import ResultTable

SHARED = ["task", "preset", "selection", "fidelity", "protocol"]


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
        """One line that tells it from all other questions."""
        parts = (self.task, self.preset, self.fidelity, self.selection, f"protocol {self.protocol}", self.machine)
        return "/".join(filter(None, parts))

    def cells(self, frame: ResultTable, *lanes: str) -> pd.DataFrame:
        """The current cells of these lanes. Neither a speed nor a trivial baseline hangs on the model selection."""
        table = frame.answering(self.task, self.preset, self.fidelity, self.protocol)
        chosen = table["lane"].isin(lanes)
        chosen &= (table["selection"] == self.selection) | (table["lane"] != "train")
        chosen &= (table["machine"] == self.machine) | (table["lane"] != "time")
        return table[chosen]

    def runs(self, frame: ResultTable, *lanes: str) -> list[ResultRow]:
        """The same as `cells`, as plain rows."""
        return [
            run
            for run in frame.runs(self.task, self.preset, self.fidelity, self.protocol)
            if run.lane in lanes
            and (run.selection == self.selection or run.lane != "train")
            and (run.machine == self.machine or run.lane != "time")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFilter:
    """What a person asks to see; None leaves all. Names without parameters stand for all of their parameters."""

    task: str | None = None
    preset: str | None = None
    selection: str | None = None
    fidelity: str | None = None
    machine: str | None = None


def board_keys(frame: ResultTable, wanted: BoardFilter | None = None) -> list[BoardKey]:
    """Every question that the Records answer, one per board, in order.

    Raises SelectionError where the filter leaves none, naming what there is.
    """
    wanted = wanted or BoardFilter()
    table = frame.current
    for axis in ("task", "preset", "selection", "fidelity", "machine"):
        asked = getattr(wanted, axis)
        if asked is not None:
            rows = table[axis] if axis != "machine" else table[axis].where(table["lane"] == "time")
            keep = [_matches(value, axis, asked) for value in rows]
            if axis == "machine":
                # a machine is asked for its speeds; accuracies may come from any
                if not any(keep):
                    _refuse(axis, asked, rows.dropna())
                keep = [k or lane != "time" for k, lane in zip(keep, table["lane"], strict=True)]
            elif not any(keep):
                _refuse(axis, asked, rows)
            elif axis == "selection":
                keep = [k or lane != "train" for k, lane in zip(keep, table["lane"], strict=True)]
            table = table[keep]
    trained = table[table["lane"] == "train"][SHARED].drop_duplicates()
    without = [name for name in SHARED if name != "selection"]
    rest = table[table["lane"] != "train"][SHARED].merge(trained[without].drop_duplicates(), how="left", indicator=True)
    alone = rest[rest["_merge"] == "left_only"][SHARED].drop_duplicates(without)
    timed = table[table["lane"] == "time"].groupby(without)["machine"].unique().to_dict()
    found = []
    for row in pd.concat([trained, alone]).itertuples(index=False):
        shared = {name: getattr(row, name) for name in SHARED}
        machines = timed.get(tuple(shared[name] for name in without), [""])
        found += [BoardKey(**shared, machine=machine) for machine in machines]
    if wanted.machine is not None:
        found = [board_key for board_key in found if board_key.machine == wanted.machine]
    return sorted(found)


def one_question(frame: ResultTable, wanted: BoardFilter) -> BoardKey:
    """The only question that the filter leaves; raises SelectionError, saying how they differ, for several."""
    found = board_keys(frame, wanted)
    if not found:
        raise SelectionError("no Records to answer from; run `attnbench run` first")
    apart = {
        axis: sorted({str(getattr(q, axis)) for q in found})
        for axis in (*SHARED, "machine")
        if len({getattr(q, axis) for q in found}) > 1
    }
    if apart:
        which = "; ".join(f"{axis}: {' or '.join(values)}" for axis, values in apart.items())
        raise SelectionError(
            f"these Records answer {len(found)} questions that must not be mixed ({which}); choose one with "
            + ", ".join(f"--{axis}" for axis in apart)
        )
    return found[0]


def _matches(value: object, axis: str, asked: str) -> bool:
    if not isinstance(value, str):
        return False
    if axis not in ("task", "preset"):
        return value == asked
    return any(
        value == str(spec) or (not spec.parameters and Spec.parse(value).name == spec.name)
        for spec in parse_selection(asked)
    )


def _refuse(axis: str, asked: str, there: Iterable[str]) -> None:
    known = sorted(set(there))
    raise SelectionError(f"no Records of {axis} {asked!r}; there are Records of: {', '.join(known) or 'none'}")
