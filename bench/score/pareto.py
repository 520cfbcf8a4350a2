"""Trade-offs: the Pareto frontier of quality and cost, and quality after equal time and at equal decode state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..core.cell import LEAST_SEEDS
from ..core.metrics import ACCURACY, Metric
from ..stats.bootstrap import DRAWS
from ..stats.intervals import Estimate, mean_estimate
from ..stats.scoring import Draws
from ..store.artifacts import Curve
from .contrasts import Contrast, Contrasts
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


Curves = Callable[[str], Curve | None]
"""Reads an artifact: the curve of that name; None where it is not at hand."""


def advantage_at_equal_time(
    own: SeedScores, reference: SeedScores, timing: RelativeCost, read: Curves
) -> Estimate | None:
    """The advantage in the best validation score over the reference's after the time that the reference trained.

    None where a curve is not at hand or does not hold the metric of the test.

    The time of a step is the reference's times the measured ratio. A faster variant is not trained on for the time that
    it has left, and a slower one is judged in the middle of its schedule: both understate it. Validation splits are
    drawn by seed, so that the interval over seeds (t) holds their noise too.
    """
    if timing.cost is None:
        return None
    differences = []
    for seed in sorted(set(own.seeds) & set(reference.seeds)):
        curves = [read(t.curves[t.seeds.index(seed)]) for t in (own, reference) if t.curves[t.seeds.index(seed)]]
        if len(curves) < 2 or not curves[0] or not curves[1]:
            return None
        steps = max(int(point["step"]) for point in curves[1])
        best = best_within(curves[0], steps / math.exp(timing.cost.value), own.metric)
        other = best_within(curves[1], steps, own.metric)
        if best is None or other is None:
            return None
        differences.append(own.metric.sign * (best - other))
    return mean_estimate(differences) if len(differences) >= LEAST_SEEDS else None


@dataclass(frozen=True, slots=True)
class Rival:
    """The best other variant that decodes with no more bytes, and how much better one is."""

    name: str
    contrast: Contrast


def advantage_at_equal_state(name: str, contrasts: Contrasts, state_bytes: Mapping[str, float]) -> Rival | None:
    """The advantage over the best rival whose decode state is no larger; None where there is no such rival.

    The rival is chosen by the scores that it is then judged by, so that its luck counts against the variant. Only
    scores that suffice for a rank are compared.
    """
    scores = contrasts.scores
    if name not in state_bytes or name not in scores or scores[name].missing_reason:
        return None
    rivals = [
        other
        for other, own in scores.items()
        if other != name and not own.missing_reason and other in state_bytes and state_bytes[other] <= state_bytes[name]
    ]
    if not rivals:
        return None
    # of equals, the first by name
    best = max(sorted(rivals), key=lambda other: scores[other].metric.sign * scores[other].mean)
    return Rival(best, contrasts.between(name, best))


def best_within(curve: Curve, steps: float, metric: Metric = ACCURACY) -> float | None:
    """The best validation score up to that step; None where none was measured by then.

    >>> best_within([{"step": 10, "validation_accuracy": 0.6}, {"step": 20, "validation_accuracy": 0.7}], steps=15)
    0.6
    """
    name = f"validation_{metric.name}"
    found = [point.get(name) for point in curve if int(point["step"]) <= steps * (1 + 1e-9)]
    scores = [float(score) for score in found if isinstance(score, int | float) and math.isfinite(score)]
    return max(scores, key=lambda score: metric.sign * score, default=None)
