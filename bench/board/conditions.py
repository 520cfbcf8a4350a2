"""Surroundings: what happened on the machine while a board's times were taken, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from ..core.cell import REFERENCE
from ..core.record import Measurement
from ..score.cost import RelativeCost, controls
from ..stats.intervals import LEVEL
from ..stats.scoring import ratio
from ..store.table import ResultTable
from .board import Footnote

DRIFT = 0.1
"""Share by which the canary may slow down within a block, or differ between blocks, before a reader is told."""

HOST_BOUND = 0.5


def surroundings(table: ResultTable, timings: Mapping[int, Mapping[str, RelativeCost]]) -> Iterator[Footnote]:
    """Warnings alone: a null control that separates, foreign load, a canary that moved, a host that was timed."""
    yield from _null_controls(timings)
    loads = _of_each(table, timings, "foreign_load")
    noted = {length: m for length, m in loads.items() if m.where.get("note")}
    if noted:
        worst = max(noted.values(), key=lambda m: m.value)
        yield Footnote(
            topic="foreign load", text=f"at length {_listed(noted)}; at its worst {worst.where['note']}", warning=True
        )
    canaries = _of_each(table, timings, "canary_seconds")
    moved = {length: m for length, m in canaries.items() if abs(_drift(m)) > DRIFT}
    if moved:
        worst = max(moved.values(), key=lambda m: abs(_drift(m)))
        yield Footnote(
            topic="canary", warning=True,
            text=f"at length {_listed(moved)} fixed work changed its time meanwhile by {100 * _drift(worst):+.0f} %",
        )  # fmt: skip
    if canaries:
        usual = median(m.value for m in canaries.values())
        apart = {length: m for length, m in canaries.items() if abs(m.value / usual - 1) > DRIFT}
        if apart:
            yield Footnote(
                topic="canary", warning=True,
                text=f"the machine was not the same at all lengths: fixed work took {_spread(apart, usual)} of its "
                "usual time; ratios within a length hold, exponents and times suffer",
            )  # fmt: skip
    bound = {length: m for length, m in _of_each(table, timings, "host_bound").items() if m.value > HOST_BOUND}
    if bound:
        yield Footnote(
            topic="host bound", warning=True,
            text=f"at length {_listed(bound)} launching took as long as the work: the host was timed, not the GPU",
        )  # fmt: skip


def _null_controls(timings: Mapping[int, Mapping[str, RelativeCost]]) -> Iterator[Footnote]:
    found = {length: controls(dict(by_name)) for length, by_name in timings.items()}
    # every block and every timed variant is one more chance to find a difference where there is none
    chances = sum(len(by_name) + len(found[length]) for length, by_name in timings.items())
    apart = {length: null for length, nulls in found.items() for null in nulls if null.p_value() * chances < 1 - LEVEL}
    if apart:
        worst = ratio(max(apart.values(), key=lambda null: abs(null.value)))
        yield Footnote(
            topic="null control", warning=True,
            text=f"{REFERENCE} timed under a second name separates from itself at length {_listed(apart)}: "
            f"{worst.value:.3f}× ({worst.low:.3f} to {worst.high:.3f}); no difference of that size can be trusted here",
        )  # fmt: skip


def _of_each(
    table: ResultTable, timings: Mapping[int, Mapping[str, RelativeCost]], name: str
) -> dict[int, Measurement]:
    """The largest value of that name at each length."""
    found = {}
    for length, by_name in timings.items():
        measured = [m for t in by_name.values() if (m := table.number(name, t.row)) is not None]
        if measured:
            found[length] = max(measured, key=lambda m: m.value)
    return found


def _drift(measurement: Measurement) -> float:
    drift = measurement.where.get("drift", 0.0)
    return float(drift) if isinstance(drift, int | float) else 0.0


def _listed(lengths: Mapping[int, object]) -> str:
    return ", ".join(f"{length:,}" for length in lengths)


def _spread(apart: Mapping[int, Measurement], usual: float) -> str:
    return ", ".join(f"{100 * m.value / usual:.0f} % at {length:,}" for length, m in apart.items())
