"""Pareto frontier: the variants that no other beats in quality and cost at once, and how surely."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..stats.bootstrap import DRAWS
from ..stats.scoring import Draws
from .cost import RelativeCost
from .quality import SeedScores

DIGITS = 9
"""Decimals of a score in its unit, and of a log-ratio, in which draws must differ."""


def frontier(quality: Mapping[str, float], cost: Mapping[str, float]) -> set[str]:
    """The names that no other beats: at least as good and as cheap, and better in one of the two.

    >>> sorted(frontier({"a": 60.0, "b": 62.0, "c": 59.0}, {"a": 1.0, "b": 2.0, "c": 1.5}))
    ['a', 'b']
    """
    return {
        one
        for one in quality
        if not any(
            quality[other] >= quality[one]
            and cost[other] <= cost[one]
            and (quality[other] > quality[one] or cost[other] < cost[one])
            for other in quality
        )
    }


def frontier_shares(scores: Mapping[str, SeedScores], timings: Mapping[str, RelativeCost]) -> dict[str, float]:
    """In which share of bootstrap draws each variant is on the frontier; empty for fewer than two that can be placed.

    One draw resamples seeds, test examples and rounds, the same for all variants, so what is paired stays paired. With
    few seeds a bootstrap is too sure of itself: deviations of seeds are widened by √(S / (S - 1)).
    """
    names = [n for n, t in scores.items() if not t.missing_reason and n in timings and timings[n].rank_cost is not None]
    if len(names) < 2:
        return {}
    rng = np.random.default_rng(0)
    # variants that tie must tie on every processor, whatever the last bits of its logarithms are
    quality = np.round(np.stack(_quality({n: scores[n] for n in names}, rng)), DIGITS)
    cost = np.round(np.stack(_cost({n: timings[n] for n in names}, rng)), DIGITS)
    beaten = np.zeros(quality.shape, dtype=bool)
    for one in range(len(names)):
        # one is beaten where another is at least as good in both and better in one
        as_good = (quality >= quality[one]) & (cost <= cost[one])
        beaten[one] = (as_good & ((quality > quality[one]) | (cost < cost[one]))).any(axis=0)
    return {name: int(free) / DRAWS for name, free in zip(names, (~beaten).sum(axis=1), strict=True)}


def _quality(scores: Mapping[str, SeedScores], rng: np.random.Generator) -> list[Draws]:
    """Larger is better, for every metric."""
    count = min(len(t.seeds) for t in scores.values())
    seeds = rng.multinomial(count, [1 / count] * count, DRAWS)
    # one may do without what is known of its examples only where all do
    paired = all(t.keeps_examples for t in scores.values()) and len({t.examples for t in scores.values()}) == 1
    found = []
    for t in scores.values():
        drawn = t.resampled() if paired else None
        by_seed = _toss(t, count, rng) if drawn is None else drawn[:, :count]
        centre = by_seed.sum(axis=1, keepdims=True) / count
        wide = centre + (by_seed - centre) * math.sqrt(count / (count - 1))
        found.append(t.metric.sign * (wide * seeds).sum(axis=1) / count)
    return found


def _toss(of: SeedScores, count: int, rng: np.random.Generator) -> Draws:
    """Scores by seed with the noise of their test examples, drawn from the normal; (DRAWS, count)."""
    scores = np.asarray(of.scores)
    first = scores[None, :count]
    if not of.metric.is_share:
        return np.repeat(first, DRAWS, axis=0)
    noise = np.sqrt(scores * (1 - scores) / of.examples).mean()
    tossed: Draws = first + noise * rng.standard_normal((DRAWS, 1))
    return tossed


def _cost(timings: Mapping[str, RelativeCost], rng: np.random.Generator) -> list[Draws]:
    picks: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
    found = []
    for name, timing in timings.items():
        logs = timing.logs
        if timing.rank_cost is None or not timing.rank_cost.noise or not len(logs):
            found.append(np.full(DRAWS, timing.rank_cost.value if timing.rank_cost else 0.0))
            continue
        shared = (timing.block or name, len(logs))
        if shared not in picks:
            picks[shared] = rng.integers(0, len(logs), (DRAWS, len(logs)))
        found.append(logs[picks[shared]].mean(axis=1))
    return found
