"""Run: one Record that counts, as boards read it: many small questions are answered from plain rows, not tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from ..core.metrics import Metric


class ResultRow(NamedTuple):
    """A row of `Frame.current`; `at` is its place there, all else the columns of that name."""

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


def newest(runs: Iterable[ResultRow], *names: str) -> list[ResultRow]:
    """Of those that agree in these fields the last, in the order in which they stand."""
    key = attrgetter(*names)
    found: dict[object, ResultRow] = {}
    for run in runs:
        found.pop(key(run), None)
        found[key(run)] = run
    return list(found.values())


class HeadMeasurement(NamedTuple):
    """One quantity in one head of one run; `attention`: its kind, where a model has several."""

    run: ResultRow
    name: str
    attention: str
    layer: int
    head: int
    value: float
