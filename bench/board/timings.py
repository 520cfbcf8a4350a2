"""Timings: the costs that a board over lengths, or over batch and length, is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.record import Outcome
from ..score.cost import RelativeCost, floor_of
from ..score.quality import describe_outcome
from ..stats.format import percent
from ..stats.intervals import Estimate, mean_of
from ..store.table import ResultTable

RAN_AS = (
    "code that was timed, fused or eager, and the share of the scores that the mechanism says it computes, if not all; "
    "an eager time is that of plain PyTorch code, not of the mechanism"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Costs by point and then by variant, at the points at which a mode was timed, in order.

    A point is a length, or a value that tells itself as text.
    """

    table: ResultTable
    by_point: Mapping[Any, Mapping[str, RelativeCost]]

    @property
    def points(self) -> list[Any]:
        return list(self.by_point)

    @property
    def names(self) -> list[str]:
        """Every variant that was timed at one point or more."""
        return sorted({name for costs in self.by_point.values() for name in costs})

    @property
    def floor(self) -> float:
        """The noise floor of all points, as a log-ratio."""
        return max(floor_of(dict(costs)) for costs in self.by_point.values())

    def costs_of(self, name: str) -> dict[Any, RelativeCost]:
        return {point: costs[name] for point, costs in self.by_point.items() if name in costs}

    def measured(self, name: str) -> dict[Any, RelativeCost]:
        """The costs of a variant where it ran."""
        return {at: cost for at, cost in self.costs_of(name).items() if cost.outcome == Outcome.OK and cost.seconds}

    def number(self, name: str, quantity: str, **where: object) -> float | None:
        """The measurement of that quantity at the last point at which the variant ran."""
        measured = self.measured(name)
        found = self.table.number(quantity, measured[max(measured)].row, **where) if measured else None
        return None if found is None else found.value

    def numbers(self, name: str, quantity: str) -> dict[Any, float]:
        """The measurements of that quantity by point, where the variant did not fail."""
        found = {
            point: self.table.number(quantity, cost.row)
            for point, cost in self.costs_of(name).items()
            if cost.outcome == Outcome.OK
        }
        return {point: measured.value for point, measured in found.items() if measured is not None}

    def implementation(self, name: str) -> str:
        """As `ran_as` says it of the last point; empty where the variant ran nowhere."""
        measured = self.measured(name)
        code = self.table.records[measured[max(measured)].row].implementation if measured else ""
        return ran_as(code, self.number(name, "declared_density"))

    def advantage(self, one: str, other: str) -> Estimate:
        """The mean over all points of how much lower the logarithm of one cost is."""
        return mean_of([costs[one].advantage_over(costs[other]) for costs in self.by_point.values()])

    def mean_cost(self, name: str) -> Estimate:
        """The mean over all points of the log-ratio to the reference."""
        return mean_of([cost.rank_cost for cost in self.costs_of(name).values() if cost.rank_cost])

    def missing_reason(self, name: str) -> str:
        """Why the variant cannot be ranked; empty where it can."""
        missing = [point for point, costs in self.by_point.items() if name not in costs]
        if missing:
            return f"not measured at {', '.join(map(format_point, missing))}"
        for point, costs in self.by_point.items():
            cost = costs[name]
            if cost.outcome == Outcome.OK and cost.rank_cost is None:
                return f"{cost.reason} at {format_point(point)}"
            if cost.outcome == Outcome.INCORRECT or cost.rank_cost is None:
                return f"{describe_outcome(cost.outcome)} at {format_point(point)}: {cost.reason}"
        return ""


def ran_as(code: str, density: float | None) -> str:
    """The code that ran, and the share of the scores that the mechanism says it computes.

    >>> ran_as("eager", 0.344), ran_as("cpp", 1.0), ran_as("", 0.5)
    ('eager; computes 34 % of the scores', 'cpp', '')
    """
    share = f"; computes {percent(density)} of the scores" if density is not None and density < 1 else ""
    return code and code + share


def format_point(point: object) -> str:
    """
    >>> format_point(1024)
    '1,024'
    """
    return f"{point:,}" if isinstance(point, int) else str(point)
