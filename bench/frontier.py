"""Frontier: who is not beaten in quality and cost at once, and how surely."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .timings import Timing
from .trials import Trials

DRAWS = 400

Draws = npt.NDArray[np.float64]


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


def frontier_shares(trials: Mapping[str, Trials], timings: Mapping[str, Timing]) -> dict[str, float]:
    """In which share of bootstrap draws each variant is on the frontier; empty for fewer than two that can be placed.

    One draw resamples seeds, test examples and rounds, the same for all variants, so what is paired stays paired. With
    few seeds a bootstrap is too sure of itself: deviations of seeds are widened by √(S / (S - 1)).
    """
    names = [n for n, t in trials.items() if not t.lack and n in timings and timings[n].standing is not None]
    if len(names) < 2:
        return {}
    rng = np.random.default_rng(0)
    quality = np.stack(_quality({n: trials[n] for n in names}, rng))
    cost = np.stack(_cost({n: timings[n] for n in names}, rng))
    # one is beaten where another is at least as good in both and better in one: (one, other, draws)
    as_good = (quality[None] >= quality[:, None]) & (cost[None] <= cost[:, None])
    better = (quality[None] > quality[:, None]) | (cost[None] < cost[:, None])
    beaten = (as_good & better).any(axis=1)
    return {name: float(1 - share) for name, share in zip(names, beaten.mean(axis=1), strict=True)}


def _quality(trials: Mapping[str, Trials], rng: np.random.Generator) -> list[Draws]:
    count = min(len(t.seeds) for t in trials.values())
    seeds = rng.multinomial(count, [1 / count] * count, DRAWS) / count
    kept = {t.correct[0].shape if t.correct else None for t in trials.values()}
    paired = len(kept) == 1 and None not in kept
    weights = _weights(next(iter(trials.values())).examples, rng) if paired else None
    found = []
    for t in trials.values():
        if weights is not None and t.correct:
            by_seed = (weights @ np.stack(t.correct[:count]).astype(np.float32).T).astype(np.float64)
        else:
            noise = np.sqrt(np.asarray(t.shares) * (1 - np.asarray(t.shares)) / t.examples).mean()
            by_seed = np.asarray(t.shares[:count])[None, :] + noise * rng.standard_normal((DRAWS, 1))
        centre = by_seed.mean(axis=1, keepdims=True)
        wide = centre + (by_seed - centre) * math.sqrt(count / (count - 1))
        found.append((wide * seeds).sum(axis=1))
    return found


def _weights(examples: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    counts = rng.poisson(1.0, (DRAWS, examples)).astype(np.float32)
    counts /= counts.sum(axis=1, keepdims=True)
    return counts


def _cost(timings: Mapping[str, Timing], rng: np.random.Generator) -> list[Draws]:
    picks: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
    found = []
    for name, timing in timings.items():
        logs = timing.logs
        if timing.standing is None or not timing.standing.noise or not len(logs):
            found.append(np.full(DRAWS, timing.standing.value if timing.standing else 0.0))
            continue
        shared = (timing.block or name, len(logs))
        if shared not in picks:
            picks[shared] = rng.integers(0, len(logs), (DRAWS, len(logs)))
        found.append(logs[picks[shared]].mean(axis=1))
    return found
