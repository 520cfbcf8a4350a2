"""ResultRow: one Record as boards read it, with its names as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from ..core.metrics import Metric


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
    """Of those that agree in these fields the last, in the order in which they stand."""
    key = attrgetter(*names)
    found: dict[object, ResultRow] = {}
    for row in rows:
        found.pop(key(row), None)
        found[key(row)] = row
    return list(found.values())
