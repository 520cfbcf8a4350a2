"""Matched: quality after equal training time, and at equal decode state; the plain board compares equal steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .intervals import Estimate, mean_estimate
from .score import LEAST_SEEDS
from .timings import Timing
from .trials import Trials

Curve = Sequence[Mapping[str, Any]]
"""Points of a training run, each with `step`, `validation_accuracy` and `validation_loss`."""

Curves = Callable[[str], Curve | None]
"""Reads an artifact: the curve of that name; None where it is not at hand."""


def gap_at_equal_time(own: Trials, reference: Trials, timing: Timing, read: Curves) -> Estimate | None:
    """Best validation accuracy over the reference's, both after the time that the reference trained; None if unknown.

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
        best = best_within(curves[0], steps / float(np.exp(timing.cost.value)))
        other = best_within(curves[1], steps)
        if best is None or other is None:
            return None
        differences.append(best - other)
    return mean_estimate(differences) if len(differences) >= LEAST_SEEDS else None


@dataclass(frozen=True, slots=True)
class Rival:
    """The most accurate other variant that decodes with no more bytes, and how far one is above it."""

    name: str
    gap: Estimate


def gap_at_equal_state(name: str, trials: Mapping[str, Trials], state_bytes: Mapping[str, float]) -> Rival | None:
    """Accuracy over that of the best rival whose decode state is no larger; None where there is none to hold it to.

    The rival is chosen by the accuracies that it is then judged by, so that its luck counts against the variant. Only
    trials that suffice for a rank are compared.
    """
    if name not in state_bytes or name not in trials or trials[name].lack:
        return None
    rivals = [
        other
        for other, own in trials.items()
        if other != name and not own.lack and other in state_bytes and state_bytes[other] <= state_bytes[name]
    ]
    if not rivals:
        return None
    # of equals, the first by name
    best = max(sorted(rivals), key=lambda other: float(np.mean(trials[other].shares)))
    return Rival(best, trials[name].gap(trials[best]))


def best_within(curve: Curve, steps: float) -> float | None:
    """The highest validation accuracy up to that step; None where none was measured by then.

    >>> best_within([{"step": 10, "validation_accuracy": 0.6}, {"step": 20, "validation_accuracy": 0.7}], steps=15)
    0.6
    """
    found = [float(point["validation_accuracy"]) for point in curve if int(point["step"]) <= steps * (1 + 1e-9)]
    return max(found, default=None)
