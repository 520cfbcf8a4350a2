"""Matched budgets: quality after equal training time, and at equal decode state. Other columns compare equal steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.metrics import ACCURACY, Metric
from ..core.protocol import LEAST_SEEDS
from ..stats.intervals import Estimate, mean_estimate
from ..store.artifacts import Curve
from .contrasts import Contrast, Contrasts
from .cost import RelativeCost
from .quality import SeedScores

Curves = Callable[[str], Curve | None]
"""Reads an artifact: the curve of that name; None where it is not at hand."""


def advantage_at_equal_time(
    own: SeedScores, reference: SeedScores, timing: RelativeCost, read: Curves
) -> Estimate | None:
    """How much better the best validation score is than the reference's after the time that the reference trained.

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
    """How much better it is than the best rival whose decode state is no larger; None where there is no such rival.

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
