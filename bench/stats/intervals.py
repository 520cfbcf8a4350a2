"""Intervals: how far a number may lie from what it estimates, and the smallest difference that they can show.

A test separates two variants where the interval of their difference, at a level corrected for all pairs, leaves zero
out. Its power is the probability of that, from the noncentral t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# scipy.stats has the same under nicer names, and takes a second to import
from scipy.special import betaincinv, nctdtr, nctdtrinc, ndtr, ndtri, stdtrit

from ..core.metrics import Interval

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class NoiseSource:
    """One independent source of error: its standard error and the degrees of freedom behind that; None = many.

    Degrees of freedom may be fractions (Satterthwaite).
    """

    error: float
    freedom: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value that independent sources of noise blur.

    Each source has its own half-width, by Student's t or the normal; the squares are added (Newcombe 1998; Zou and
    Donner 2008). Exact where one source dominates, and never narrower than any source alone: a pooled standard error
    with Satterthwaite's degrees of freedom would be, whenever three seeds happen to agree.

    >>> wide = Estimate(0.0, (NoiseSource(3.0, 2), NoiseSource(4.0))).interval()
    >>> round(wide.high, 2) == round(math.hypot(3.0 * 4.3027, 4.0 * 1.96), 2)
    True
    """

    value: float
    noise: tuple[NoiseSource, ...] = ()

    def half_width(self, level: float = LEVEL) -> float:
        return math.hypot(*(n.error * quantile(level, n.freedom) for n in self.noise if n.error > 0))

    def interval(self, level: float = LEVEL) -> Interval:
        half = self.half_width(level)
        return Interval(self.value, self.value - half, self.value + half)

    def p_value(self) -> float:
        """The smallest alpha whose interval leaves zero out; 1 for a value of zero, 0 without noise.

        >>> round(Estimate(4.3027, (NoiseSource(1.0, 2),)).p_value(), 3)
        0.05
        """
        if self.value == 0:
            return 1.0
        low, high = math.log(1e-15), 0.0  # natural logarithm of alpha
        if self.half_width(1 - 1e-15) < abs(self.value):
            return 0.0
        for _ in range(50):
            middle = (low + high) / 2
            if self.half_width(-math.expm1(middle)) < abs(self.value):
                high = middle
            else:
                low = middle
        return math.exp(high)

    def minus(self, other: Estimate) -> Estimate:
        """The difference to an independent estimate."""
        return Estimate(self.value - other.value, self.noise + other.noise)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates: of these tasks or lengths, not of others like them.

    >>> mean_of([Estimate(1.0, (NoiseSource(0.3, 4),)), Estimate(3.0, (NoiseSource(0.4, 4),))])
    Estimate(value=2.0, noise=(NoiseSource(error=0.15, freedom=4), NoiseSource(error=0.2, freedom=4)))
    """
    count = len(estimates)
    noise = tuple(NoiseSource(n.error / count, n.freedom) for e in estimates for n in e.noise)
    return Estimate(math.fsum(e.value for e in estimates) / count, noise)


def pooled_mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean as by `mean_of`, with one t for the sum of all noise that has degrees of freedom (Satterthwaite 1946).

    A quantile for each estimate, added in squares, is exact for one estimate and too wide for several.

    >>> pooled_mean_of([Estimate(1.0, (NoiseSource(0.3, 4),)), Estimate(3.0, (NoiseSource(0.3, 4),))]).noise[0].freedom
    8.0
    """
    mean = mean_of(estimates)
    of_seeds = [n for n in mean.noise if n.freedom is not None and n.error > 0]
    of_test = [n for n in mean.noise if n.freedom is None]
    inverse = math.fsum(n.error**4 / n.freedom for n in of_seeds if n.freedom)
    error = math.hypot(*(n.error for n in of_seeds))
    pooled = [NoiseSource(error, error**4 / inverse)] if inverse else []
    return Estimate(mean.value, (*pooled, *([NoiseSource(math.hypot(*(n.error for n in of_test)))] if of_test else [])))


@lru_cache(maxsize=4096)
def quantile(level: float, freedom: float | None) -> float:
    """The t with P(|T| ≤ t) = level for Student's T; the normal's where `freedom` is None.

    >>> round(quantile(0.95, 2), 3), round(quantile(0.95, None), 3)
    (4.303, 1.96)
    """
    if level <= 0:
        return 0.0
    tail = (1 - level) / 2
    return -float(ndtri(tail) if freedom is None else stdtrit(freedom, tail))


def mean_estimate(values: Sequence[float] | npt.NDArray[np.float64]) -> Estimate:
    """The mean of independent values, with a t interval; raises ValueError for fewer than two.

    >>> round(mean_estimate([1.0, 2.0, 3.0]).interval().low, 3)  # 2 - 4.303 × 1 / √3
    -0.484
    """
    # a few numbers at a time, thousands of times: plain floats take a tenth of an array's time
    sample = [float(value) for value in values]
    count = len(sample)
    if count < 2:
        raise ValueError(f"expected at least two values, got {count}")
    mean = math.fsum(sample) / count
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in sample) / (count - 1) / count)
    return Estimate(mean, (NoiseSource(error, count - 1),))


@lru_cache(maxsize=4096)
def wilson(share: float, count: int, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a share of `count` independent trials; stays inside [0, 1] and is never of width zero.

    >>> wilson(0.5, 100).low.__round__(4), wilson(1.0, 100).low.__round__(4)
    (0.4038, 0.963)
    """
    z = quantile(level, None)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Interval(share, min(share, centre - half), max(share, centre + half))


class Share(NamedTuple):
    """The number of trainings that learned, of how many."""

    learned: int
    trained: int

    def interval(self, level: float = LEVEL) -> Interval:
        """The exact interval of Clopper and Pearson (1934); it stays inside [0, 1].

        >>> found = Share(3, 6).interval()
        >>> round(found.low, 3), round(found.high, 3)
        (0.118, 0.882)
        """
        tail, failed = (1 - level) / 2, self.trained - self.learned
        low = float(betaincinv(self.learned, failed + 1, tail)) if self.learned else 0.0
        high = float(betaincinv(self.learned + 1, failed, 1 - tail)) if failed else 1.0
        return Interval(self.learned / self.trained, low, high)

    def p_value(self, other: Share) -> float:
        """Fisher's exact test that both learn equally often, two-sided: the tables that are no more probable.

        >>> round(Share(6, 6).p_value(Share(1, 6)), 3), round(Share(6, 6).p_value(Share(3, 6)), 2)
        (0.015, 0.18)
        """
        learned, trained = self.learned + other.learned, self.trained + other.trained
        ways = {
            one: math.comb(self.trained, one) * math.comb(other.trained, learned - one)
            for one in range(max(0, learned - other.trained), min(self.trained, learned) + 1)
        }
        return sum(way for way in ways.values() if way <= ways[self.learned]) / math.comb(trained, learned)


POWER = 0.8
"""The usual convention (Cohen 1988): four of five studies of a true difference of that size find it."""

MOST_SEEDS = 100

MANY = 1e5
"""The degrees of freedom from which on Student's t is the normal distribution."""


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
