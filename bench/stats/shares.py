"""Shares of trainings that learned: exact intervals and tests, since a handful of seeds has no normal approximation."""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.special import betaincinv

from ..core.interval import Interval
from .intervals import LEVEL


class Share(NamedTuple):
    """So many of so many trainings learned."""

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


def least_difference(trained: int, alpha: float) -> int | None:
    """The most trainings of another that may have learned beside `trained` of `trained`, for a difference at `alpha`.

    None where not even 0 would do.

    >>> least_difference(6, 0.05), least_difference(6, 0.0005), least_difference(10, 0.0005)
    (1, None, 1)
    """
    shown = [k for k in range(trained) if Share(trained, trained).p_value(Share(k, trained)) < alpha]
    return max(shown, default=None)
