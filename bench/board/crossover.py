"""Crossover: the length from which a variant costs less than the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..stats.intervals import Estimate, NoiseSource
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


def mean_of(estimates: list[Estimate]) -> Estimate:
    """The mean of independent estimates: of these tasks or lengths, not of others like them.

    >>> mean_of([Estimate(1.0, (NoiseSource(0.3, 4),)), Estimate(3.0, (NoiseSource(0.4, 4),))])
    Estimate(value=2.0, noise=(NoiseSource(error=0.15, freedom=4), NoiseSource(error=0.2, freedom=4)))
    """
    count = len(estimates)
    noise = tuple(NoiseSource(n.error / count, n.freedom) for e in estimates for n in e.noise)
    return Estimate(math.fsum(e.value for e in estimates) / count, noise)


def _beats(cost: Estimate | None, floor: float) -> bool:
    return cost is not None and cost.value < -floor and difference_is_proven(cost)
