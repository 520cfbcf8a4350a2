"""Shares: which difference in how many trainings learned is proven, among all pairs of a board.

Fisher's exact test at a level divided by the number of pairs is far too strict: among eleven variants six of six
against none of six would not pass, though equal variants show it on 2 % of boards at most. So the level is the one that
keeps the chance of any false difference: the worst over all shares that equal variants may have in common.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, gammaln

from .intervals import LEVEL, Share

Floats = npt.NDArray[np.float64]

SHARES = np.linspace(0.02, 0.5, 49)
"""Shares of trainings that learn, at which errors are computed; above a half all is mirrored."""


@lru_cache(maxsize=256)
def proven_below(trained: int, pairs: int) -> float:
    """The largest p-value of Fisher's test that proves a difference, where each of two trained so many times.

    `pairs`: how many comparisons the board makes, taken as all pairs of the fewest variants that have as many. Among
    variants that learn equally often, half of the error that a board allows is made at most: the other half is that of
    their means. 0 where no numbers prove anything.

    >>> round(proven_below(6, 55), 4), round(proven_below(12, 55), 4), proven_below(3, 1)
    (0.0022, 0.0013, 0.0)
    """
    variants = math.ceil((1 + math.sqrt(1 + 8 * pairs)) / 2)
    p_values = fisher_table(trained)
    # of the smallest and the largest number of trainings that learned: who else lies between them proves no more
    least, most = np.triu_indices(trained + 1)
    order = np.argsort(p_values[least, most], kind="stable")
    found = p_values[least, most][order]
    errors = np.full(len(order), -np.inf)
    # a share at a time: over five tasks at 200 seeds, the chances at one are 8 MB
    for share in SHARES:
        np.maximum(errors, _extremes(trained, variants, share)[least, most][order].cumsum(), out=errors)
    # numbers with the same p-value are proven together
    ends = np.flatnonzero(np.diff(found, append=2.0) > 1e-12)
    kept = ends[errors[ends] <= (1 - LEVEL) / 2]
    return float(found[kept[-1]]) if len(kept) else 0.0


def is_proven(one: Share, other: Share, pairs: int) -> bool:
    """True if the two learn differently often; both trained as many times.

    >>> is_proven(Share(6, 6), Share(0, 6), 55), is_proven(Share(6, 6), Share(1, 6), 55)
    (True, False)
    """
    if one.learned == other.learned:
        return False
    # from the table, since the numbers of ways that a p-value counts have hundreds of digits
    p_value = fisher_table(one.trained)[one.learned, other.learned]
    return bool(p_value <= proven_below(one.trained, pairs) * (1 + 1e-9))


def least_difference(trained: int, pairs: int) -> int | None:
    """The most trainings of another that may have learned beside `trained` of `trained`, where a difference is proven.

    None where not even 0 would do.

    >>> least_difference(6, 1), least_difference(6, 55), least_difference(3, 55), least_difference(10, 55)
    (2, 0, None, 2)
    """
    shown = [k for k in range(trained) if is_proven(Share(trained, trained), Share(k, trained), pairs)]
    return max(shown, default=None)


@lru_cache(maxsize=64)
def fisher_table(trained: int) -> Floats:
    """The p-values of `Share.p_value`, (trained + 1, trained + 1), by how many of so many trainings of each learned."""
    numbers = np.arange(trained + 1)
    # logarithms, since from 515 trainings on products of these are larger than a float
    ways = gammaln(trained + 1) - gammaln(numbers + 1) - gammaln(trained - numbers + 1)
    table = np.ones((trained + 1, trained + 1))
    for both in range(2 * trained + 1):
        one = numbers[max(0, both - trained) : both + 1]
        joint = ways[one] + ways[both - one]
        joint = np.exp(joint - joint.max())
        rising = np.sort(joint)
        # of tables as rare as the first, the second and so on
        together = rising.cumsum()
        as_rare = np.searchsorted(rising, joint * (1 + 1e-9), side="right") - 1
        table[one, both - one] = together[as_rare] / together[-1]
    return table


def _extremes(trained: int, variants: int, share: float) -> Floats:
    """Chances of the least and the most that any of the variants learned, (trained + 1, trained + 1).

    `share`: of the trainings of every variant, how many learn.
    """
    below = np.zeros(trained + 2)
    below[1:] = bdtr(np.arange(trained + 1.0), trained, share)
    # all lie from the first number to the second
    inside = np.zeros((trained + 3, trained + 3))
    inside[1:-1, 1:-1] = np.maximum(below[1:] - below[:-1, None], 0.0) ** variants
    found: Floats = inside[1:-1, 1:-1] - inside[2:, 1:-1] - inside[1:-1, :-2] + inside[2:, :-2]
    return found
