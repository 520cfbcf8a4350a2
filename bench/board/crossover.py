"""Crossover: the length from which a variant costs less than the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..stats.intervals import Estimate
from ..stats.ranking import difference_is_proven


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """`length`: the smallest measured from which the variant beats the reference at every larger one, None for none.

    `between`: the log-log interpolation to the next smaller length, where that is not beaten.
    """

    length: int | None
    between: float | None = None
    text: str = ""


def crossover(costs: Mapping[int, Estimate | None], floor: float = 0.0) -> Crossover:
    """Where cost falls below the reference's for good; a failure (None) beats nothing.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> slower, faster = Estimate(0.5, (NoiseSource(0.01),)), Estimate(-0.5, (NoiseSource(0.01),))
    >>> crossover({256: slower, 512: faster, 1024: faster}).text
    'from 512 on (about 362)'
    """
    lengths = sorted(costs)
    first = len(lengths)
    while first and _beats(costs[lengths[first - 1]], floor):
        first -= 1
    if first == len(lengths):
        return Crossover(length=None, text=f"not up to {lengths[-1]:,}" if lengths else "")
    if not first:
        return Crossover(length=lengths[0], text=f"from {lengths[0]:,} on, or sooner")
    before, length = lengths[first - 1], lengths[first]
    here, there = costs[before], costs[length]
    between = None
    if here is not None and there is not None and here.value > 0 > there.value:
        share = here.value / (here.value - there.value)
        between = math.exp(math.log(before) + share * (math.log(length) - math.log(before)))
    about = f" (about {between:,.0f})" if between else ""
    return Crossover(length=length, between=between, text=f"from {length:,} on{about}")


def _beats(cost: Estimate | None, floor: float) -> bool:
    return cost is not None and cost.value < -floor and difference_is_proven(cost)
