"""Power: the smallest difference that a test is likely to find, and how many seeds a difference of some size needs.

A test separates two variants where the interval of their difference, at a level corrected for all pairs, leaves zero
out. Its power is the probability of that, from the noncentral t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from scipy.special import nctdtr, nctdtrinc, ndtr, ndtri

from .intervals import Estimate, NoiseSource

POWER = 0.8
"""The usual convention (Cohen 1988): four of five studies of a true difference of that size find it."""

MOST_SEEDS = 100

MANY = 1e5
"""From so many degrees of freedom on, Student's t is the normal distribution."""


def power(difference: float, noise: Iterable[NoiseSource], level: float) -> float:
    """The probability that the interval at `level` leaves zero out, where the true difference is `difference`.

    The errors of `noise` are taken to be the true ones; intervals that miss zero on the wrong side are not counted.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> round(power(2.8, [NoiseSource(1.0)], 0.95), 2)
    0.8
    """
    error, freedom, threshold = _t_test(tuple(noise), level)
    if error == 0:
        return float(difference != 0)
    shift = abs(difference) / error
    return float(1 - nctdtr(freedom, shift, threshold)) if freedom < MANY else float(ndtr(shift - threshold))


def minimal_detectable_effect(noise: Iterable[NoiseSource], level: float, power: float = POWER) -> float:
    """The smallest true difference whose interval at `level` leaves zero out with probability `power`.

    In the unit of the errors of `noise`, which are taken to be the true ones.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> round(minimal_detectable_effect([NoiseSource(1.0)], 0.95), 2)  # 1.96 + 0.84
    2.8
    """
    error, freedom, threshold = _t_test(tuple(noise), level)
    if error == 0:
        return 0.0
    shift = nctdtrinc(freedom, 1 - power, threshold) if freedom < MANY else threshold + ndtri(power)
    return float(error * shift)


def seeds_needed(
    difference: float,
    noise_of: Callable[[int], Iterable[NoiseSource]],
    level: float,
    power: float = POWER,
    *,
    least: int = 2,
) -> int | None:
    """The smallest number of seeds, from `least` on, with which a true difference of that size is found.

    `noise_of`: the noise that so many seeds would have. None where more than `MOST_SEEDS` are needed, such as where the
    noise of the test examples alone hides the difference: more seeds do not help then, more examples do.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> noise_of = lambda seeds: [NoiseSource(math.sqrt(2 / seeds), 2 * (seeds - 1))]
    >>> seeds_needed(1.0, noise_of, 0.95)  # as in tables of the two-sample t-test: 17 a group
    17
    """
    if difference == 0:
        return None

    def enough(seeds: int) -> bool:
        return minimal_detectable_effect(noise_of(seeds), level, power) <= abs(difference)

    if not enough(MOST_SEEDS):
        return None
    low, high = least, MOST_SEEDS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _t_test(noise: tuple[NoiseSource, ...], level: float) -> tuple[float, float, float]:
    """The error of a difference, its degrees of freedom (Satterthwaite), and the half-width over the error."""
    error = math.hypot(*(source.error for source in noise))
    if error == 0:
        return 0.0, MANY, 0.0
    inverse = math.fsum(source.error**4 / source.freedom for source in noise if source.freedom)
    freedom = min(error**4 / inverse, MANY) if inverse else MANY
    return error, freedom, Estimate(0.0, noise).half_width(level) / error
