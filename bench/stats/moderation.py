"""Moderation: how much seeds move each variant's score, with the variance of few seeds shrunk towards the board's.

Three seeds give a variance with two degrees of freedom, whose t is 4.3 for one comparison and 17 for fifteen. Smyth
(2004, Linear models and empirical Bayes methods for assessing differential expression) lends each variance the degrees
of freedom that the spread of all variances justifies; `limma` does this for genes. Three things differ here:

- The seed's own effect (the order of the data is the same for all variants) is taken out first, as in a two-way layout.
- The weight of the board is capped at the number of seeds. With few variances the estimate of that weight is rough, and
  a variant whose seeds happen to agree would otherwise get the board's variance almost alone.
- A variant far outside the board keeps its own variance and leaves the pool (as hypervariable genes do in Phipson et
  al. 2016). That can only widen its own intervals, so the rule needs no power to be safe.

All functions take any number of leading axes: simulations run thousands of boards at once through this very code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import fdtri, polygamma

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LEAST_POOL = 3
"""Fewer variants than this tell nothing of how variances spread."""

FAR_OUTSIDE = 0.001
"""Chance that any one of a board's equal variances is taken to be far outside."""


class SeedVariances(NamedTuple):
    """Variances of the score at one seed, with the degrees of freedom behind them, by variant (…, variants).

    `weights`: degrees of freedom that the pool lent to each. `keeps_own`: whose variance is its own alone.
    `pooled_freedom`: (…), most that a difference of two may claim.
    """

    variances: Floats
    freedom: Floats
    weights: Floats
    keeps_own: Flags
    pooled_freedom: Floats


class Prior(NamedTuple):
    """The board's variance (…), and the degrees of freedom that it is worth to each variant."""

    variance: Floats
    freedom: Floats


def moderated_variances(scores: Floats, pool: Flags) -> SeedVariances:
    """Moderated variances of `scores` (…, variants, seeds), at least two seeds, the same ones for all variants.

    `pool`: (…, variants), who tells what is usual. With fewer than three in it nobody is moderated (weights of 0).

    >>> scores = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 3.0, 0.0]])
    >>> found = moderated_variances(scores, np.array([True, False, False]))
    >>> found.variances.tolist(), found.freedom.tolist()  # each has its own
    ([1.0, 1.0, 3.0], [2.0, 2.0, 2.0])
    """
    seeds = scores.shape[-1]
    inside = np.broadcast_to(pool, scores.shape[:-1])
    variances = seed_variances(scores, inside)
    # who is far outside blurs the seeds' effects, and so widens the others' variances; to take these anew without it
    # raised the error of boards with one deviation five times the others' from 5.2 to 7.2 % at five seeds
    own = _far_outside(variances, inside, seeds - 1)
    inside = inside & ~own
    prior = prior_of(variances, inside, seeds - 1, cap=float(seeds))
    weights = np.where(own, 0.0, prior.freedom[..., None])
    freedom = weights + (seeds - 1)
    count = inside.sum(axis=-1)
    return SeedVariances(
        variances=(weights * prior.variance[..., None] + (seeds - 1) * variances) / freedom,
        freedom=freedom,
        weights=weights,
        keeps_own=own,
        pooled_freedom=np.where(count < LEAST_POOL, np.inf, (count - 1.0) * (seeds - 1)),
    )


def seed_variances(scores: Floats, inside: Flags) -> Floats:
    """Each variant's own variance over seeds, (…, variants), without the effect that a seed has on all of the pool.

    Unbiased where variances are equal: the residual of one of n in the pool has the share 1 - 1/n of its variance, that
    of one outside 1 + 1/n. With fewer than three in the pool the seed's effect stays in.
    """
    seeds, count = scores.shape[-1], inside.sum(axis=-1)
    centred = scores - scores.mean(axis=-1, keepdims=True)
    usable = (count >= LEAST_POOL)[..., None]
    divisor = np.maximum(count, 1)[..., None]
    effect = np.where(usable, (centred * inside[..., None]).sum(axis=-2) / divisor, 0.0)
    share = np.where(usable, 1 + np.where(inside, -1.0, 1.0) / np.maximum(divisor, 2), 1.0)
    residuals = centred - effect[..., None, :]
    found: Floats = (residuals**2).sum(axis=-1) / (seeds - 1) / share
    return found


def prior_of(variances: Floats, inside: Flags, freedom: float, cap: float = np.inf) -> Prior:
    """The prior that the variances (…, variants) of the pool give: Smyth 2004, section 6.2, on their logarithms.

    Under the model the logarithm of a variance has the variance trigamma(d/2) + trigamma(d0/2): the excess over the
    first part gives d0, the degrees of freedom that the pool is worth; no excess means infinitely many. The variance
    itself is the mean over the pool: Smyth's, from the mean logarithm, is the same for infinite d0 and noisier.
    """
    count = inside.sum(axis=-1)
    divisor = np.maximum(count, 1)
    mean = np.where(inside, variances, 0.0).sum(axis=-1) / divisor
    # seeds that agree to the last digit have no logarithm
    floor = np.maximum(1e-5 * mean, np.finfo(float).tiny)[..., None]
    logs = np.log(np.maximum(variances, floor))
    centre = np.where(inside, logs, 0.0).sum(axis=-1) / divisor
    spread = np.where(inside, (logs - centre[..., None]) ** 2, 0.0).sum(axis=-1) / np.maximum(count - 1, 1)
    excess = spread - polygamma(1, freedom / 2)
    positive = excess > 0
    worth = np.where(positive, 2 * inverse_trigamma(np.where(positive, excess, 1.0)), np.inf)
    return Prior(mean, np.where(count < LEAST_POOL, 0.0, np.minimum(worth, cap)))


def inverse_trigamma(values: Floats) -> Floats:
    """The y with trigamma(y) = values, by Newton's method on 1/trigamma (Smyth 2004, appendix).

    >>> float(inverse_trigamma(np.array(polygamma(1, 2.5)))).__round__(9)
    2.5
    """
    found: Floats = 0.5 + 1 / np.asarray(values, dtype=np.float64)
    for _ in range(20):
        at = polygamma(1, found)
        step = at * (1 - at / values) / polygamma(2, found)
        found = found + step
        if np.all(-step <= 1e-8 * found):
            break
    return found


def noise_of_difference(
    one: Floats, other: Floats, one_freedom: Floats, other_freedom: Floats, most: Floats, seeds: int
) -> tuple[Floats, Floats]:
    """Error and degrees of freedom of the difference of two means over `seeds`, from the variances of one seed.

    Satterthwaite's degrees of freedom, and no more than `most`, those of the whole pool.

    >>> noise_of_difference(*map(np.array, (1.5, 1.5, 5.0, 5.0, 8.0)), 3)
    (np.float64(1.0), np.float64(8.0))
    """
    both = one + other
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = both**2 / (one**2 / one_freedom + other**2 / other_freedom)
    return np.sqrt(both / seeds), np.minimum(np.where(both > 0, freedom, one_freedom + other_freedom), most)


def _far_outside(variances: Floats, inside: Flags, freedom: float) -> Flags:
    """The variances so far above the others of the pool that an F test puts them outside; at most a third of it.

    The largest are held against the mean of all that are smaller, so that two of them cannot hide each other.
    """
    count = inside.sum(axis=-1)
    total = variances.shape[-1]
    # those outside the pool sort last and are judged by themselves below
    ordered = np.sort(np.where(inside, variances, np.inf), axis=-1)
    sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0.0), axis=-1)
    bound = np.full(variances.shape[:-1], np.inf)
    chance = 1 - FAR_OUTSIDE / total
    for at in range(total - 1, 0, -1):
        mean = sums[..., at - 1] / at
        tested = (at < count) & (3 * at >= 2 * count) & (count >= LEAST_POOL)
        beyond = tested & (ordered[..., at] > fdtri(freedom, at * freedom, chance) * mean)
        bound = np.where(beyond, ordered[..., at], bound)
    usual = inside & (variances < bound[..., None])
    many = usual.sum(axis=-1)
    mean = np.where(usual, variances, 0.0).sum(axis=-1) / np.maximum(many, 1)
    limit = fdtri(freedom, np.maximum(many, 1) * freedom, chance) * mean
    far = np.where(inside, variances >= bound[..., None], variances > limit[..., None])
    found: Flags = far & (count >= LEAST_POOL)[..., None]
    return found
