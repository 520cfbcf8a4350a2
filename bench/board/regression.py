"""Regression: what became slower than in an older folder of Records, each time held against softmax's of its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.metrics import Interval
from ..score.cost import Mode, RelativeCost, costs_by_variant
from ..score.key import BoardKey
from ..stats.intervals import Estimate
from ..stats.scoring import ratio
from ..store.table import ResultTable
from .length_board import MODES

NOTHING_SHARED = (
    "expected times of the same task, preset and variant in the folder of --against, got none; make them with the same "
    "command and --results FOLDER"
)

Place = tuple[str, str, Mode, str]
"""Task, preset, mode and variant of a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChange:
    """The cost over softmax now, divided by that before, with its 95 % interval; None where now it has no time.

    `disturbed`: whether other processes took the cores of either, so that it says nothing.
    """

    variant: str
    task: str
    mode: Mode
    times: Interval | None
    reason: str = ""
    disturbed: bool = False

    def is_slower(self, limit: float) -> bool:
        """True if it is slower by more than the share `limit`, and shown to be slower at all; or no longer runs."""
        if self.disturbed:
            return False
        return self.times is None or (self.times.value > 1 + limit and self.times.low > 1)

    @property
    def words(self) -> str:
        """
        >>> CostChange(variant="rela", task="recall", mode="step", times=Interval(1.084, 1.05, 1.12)).words
        'rela on recall, a training step: +8.4 % (+5.0 to +12.0)'
        """
        place = f"{self.variant} on {self.task}, {MODES[self.mode].one}"
        if self.disturbed:
            return f"{place}: {self.reason}"
        if self.times is None:
            return f"{place}: no time now ({self.reason})"
        value, low, high = (100 * (each - 1) for each in (self.times.value, self.times.low, self.times.high))
        return f"{place}: {value:+.1f} % ({low:+.1f} to {high:+.1f})"


def changes_since(
    new: tuple[ResultTable, Sequence[BoardKey]], old: tuple[ResultTable, Sequence[BoardKey]]
) -> list[CostChange]:
    """The change of every cost that both have, the slowest first. Raises SelectionError where they share none."""
    now, before = _costs(*new), _costs(*old)
    found = []
    for place, cost in now.items():
        task, _, mode, variant = place
        old_cost = before.get(place)
        was = old_cost.cost if old_cost else None
        if old_cost is None or was is None:
            continue
        busy = next((each for each in (cost, old_cost) if each.disturbed), None)
        change = None if cost.cost is None else Estimate(cost.cost.value - was.value, (*cost.cost.noise, *was.noise))
        times = None if change is None else ratio(change)
        reason = (busy or cost).reason or cost.outcome
        found.append(
            CostChange(variant=variant, task=task, mode=mode, times=times, reason=reason, disturbed=bool(busy))
        )
    if not found:
        raise SelectionError(NOTHING_SHARED)
    return sorted(found, key=lambda change: -(change.times.low if change.times else float("inf")))


def _costs(table: ResultTable, keys: Sequence[BoardKey]) -> dict[Place, RelativeCost]:
    """The costs by place; of several machines those of the newest."""
    found: dict[Place, RelativeCost] = {}
    for key in sorted(keys, key=lambda key: key.last_timing(table)):
        for mode in MODES:
            costs = costs_by_variant(table, key, mode)
            found |= {(key.task, key.preset, mode, name): cost for name, cost in costs.items() if name != REFERENCE}
    return found
