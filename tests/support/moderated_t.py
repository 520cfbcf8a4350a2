"""The moderated t of Smyth (2004), written from the paper with scipy.stats, plain loops and a root finder.

Capped and centred by seed as boards do it; nothing of attnbench's own code is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize, special, stats


def fitted(variances: Sequence[float], freedom: int) -> tuple[float, float]:
    """s0² and d0 of section 6.2: moments of the logarithms, matched by digamma and trigamma."""
    logs = [math.log(v) - special.digamma(freedom / 2) + math.log(freedom / 2) for v in variances]
    mean = math.fsum(logs) / len(logs)
    excess = math.fsum((each - mean) ** 2 for each in logs) / (len(logs) - 1) - special.polygamma(1, freedom / 2)
    if excess <= 0:
        return math.exp(mean), math.inf
    half = optimize.brentq(lambda y: special.polygamma(1, y) - excess, 1e-6, 1e9, xtol=1e-12)
    return math.exp(mean + special.digamma(half) - math.log(half)), 2 * half


def posterior(
    scores: Mapping[str, Sequence[float]], pool: Sequence[str]
) -> tuple[dict[str, tuple[float, float]], float]:
    """Variance of one seed's score and its degrees of freedom, by name, and the degrees of freedom of the pool."""
    seeds = len(next(iter(scores.values())))
    inside = [name for name in pool if name in scores]
    if len(inside) < 3:
        return {name: (float(np.var(own, ddof=1)), seeds - 1.0) for name, own in scores.items()}, math.inf
    means = {name: math.fsum(values) / seeds for name, values in scores.items()}
    effects = [math.fsum(scores[name][s] - means[name] for name in inside) / len(inside) for s in range(seeds)]
    own = {}
    for name, values in scores.items():
        residuals = [values[s] - means[name] - effects[s] for s in range(seeds)]
        share = 1 - 1 / len(inside) if name in inside else 1 + 1 / len(inside)
        own[name] = math.fsum(r * r for r in residuals) / (seeds - 1) / share
    weight = min(fitted([own[name] for name in inside], seeds - 1)[1], seeds)
    usual = math.fsum(own[name] for name in inside) / len(inside)
    found = {
        name: ((weight * usual + (seeds - 1) * variance) / (weight + seeds - 1), weight + seeds - 1.0)
        for name, variance in own.items()
    }
    return found, (len(inside) - 1.0) * (seeds - 1)


def half_width_of_seeds(
    scores: Mapping[str, Sequence[float]], one: str, other: str, pool: Sequence[str], pairs: int
) -> float:
    """Half-width of the interval of a difference, by the noise of seeds alone, corrected for so many pairs."""
    found, most = posterior(scores, pool)
    (v, f), (w, g) = found[one], found[other]
    freedom = min((v + w) ** 2 / (v * v / f + w * w / g), most)
    return float(math.sqrt((v + w) / len(scores[one])) * stats.t.ppf(1 - 0.025 / pairs, freedom))


def half_width_of_examples(error: float, pairs: int) -> float:
    return float(error * stats.norm.ppf(1 - 0.025 / pairs))
