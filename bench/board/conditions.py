"""Conditions: warnings of what disturbed the machine while the times of a board over lengths were taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from ..core.cell import REFERENCE
from ..core.record import Measurement
from ..score.cost import RelativeCost, controls
from ..stats.intervals import LEVEL
from ..stats.scoring import ratio
from ..store.table import ResultTable
from .board import Note
from .notes import NoteKind, footnote

DRIFT = 0.1
"""Share by which the drift probe may slow down within a block, or differ between blocks, before there is a warning."""

HOST_BOUND = 0.5

CostsByPoint = Mapping[Any, Mapping[str, RelativeCost]]
"""Costs by variant at each point of a board: a length, or what tells itself as text."""


def condition_footnotes(table: ResultTable, timings: CostsByPoint, point: str = "length") -> Iterator[Note]:
    """A warning for a null control that separates, other load, fixed work that changed its time, and a busy host.

    `point`: what the board is over, such as length.
    """
    texts = {
        "null control": _null_control(timings, point),
        "other load": _other_load(_largest(table, timings, "foreign_load"), point),
        "machine speed": _canary(_largest(table, timings, "canary_seconds"), point),
        "host bound": _host_bound(_largest(table, timings, "host_bound"), point),
    }
    for topic, found in texts.items():
        yield from (footnote(topic=topic, text=text, kind=NoteKind.NOISE, warning=True) for text in found)


def _null_control(timings: CostsByPoint, point: str) -> Iterator[str]:
    found = {length: controls(dict(by_name)) for length, by_name in timings.items()}
    # every block and every timed variant is one more chance to find a difference where there is none
    chances = sum(len(by_name) + len(found[length]) for length, by_name in timings.items())
    apart = {length: null for length, nulls in found.items() for null in nulls if null.p_value() * chances < 1 - LEVEL}
    if apart:
        worst = ratio(max(apart.values(), key=lambda null: abs(null.value)))
        yield (
            f"{REFERENCE} timed under a second name separates from itself at {point} {_listed(apart)}: "
            f"{worst.value:.3f}× ({worst.low:.3f}–{worst.high:.3f}); trust no difference of that size"
        )


def _other_load(loads: Mapping[Any, Measurement], point: str) -> Iterator[str]:
    noted = {length: m for length, m in loads.items() if m.where.get("note")}
    if noted:
        worst = max(noted.values(), key=lambda m: m.value)
        yield f"at {point} {_listed(noted)}; at the worst, {worst.where['note']}"


def _canary(canaries: Mapping[Any, Measurement], point: str) -> Iterator[str]:
    moved = {length: drift for length, m in canaries.items() if abs(drift := _drift(m)) > DRIFT}
    if moved:
        worst = max(moved.values(), key=abs)
        yield f"at {point} {_listed(moved)} the time of a fixed piece of work changed by {100 * worst:+.0f} %"
    usual = median(m.value for m in canaries.values()) if canaries else 1.0
    apart = {length: m.value / usual for length, m in canaries.items() if abs(m.value / usual - 1) > DRIFT}
    if apart:
        shares = ", ".join(f"{100 * share:.0f} % at {point_words(length)}" for length, share in apart.items())
        yield (
            f"the machine differed between {point}s: a fixed piece of work took {shares} of its usual time; trust "
            f"ratios within a {point}, not times and exponents"
        )


def _host_bound(shares: Mapping[Any, Measurement], point: str) -> Iterator[str]:
    bound = [length for length, m in shares.items() if m.value > HOST_BOUND]
    if bound:
        yield f"at {point} {_listed(bound)} launching took as long as the work: the times are the host's, not the GPU's"


def _largest(table: ResultTable, timings: CostsByPoint, name: str) -> dict[Any, Measurement]:
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


def _listed(points: Iterable[object]) -> str:
    return ", ".join(map(point_words, points))


def point_words(point: object) -> str:
    """A point of a board as text: a length, or what tells itself."""
    return f"{point:,}" if isinstance(point, int) else str(point)
