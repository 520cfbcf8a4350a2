"""Learned or not: whether a training is above the best constant prediction, and how soon it reached a level.

Boards compute it; no Record says it.

A constant prediction answers all examples alike: the most frequent class, or the frequency of each token. A task whose
constant prediction is not known, such as translation, has no such bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.metrics import Metric
from ..core.record import Outcome
from ..stats.intervals import LEVEL, quantile, wilson
from ..stats.scoring import Draws
from ..store.artifacts import Curve
from ..store.rows import ResultRow
from ..store.table import ResultTable

CONSTANT = ("majority", "unigram")
"""Baselines that answer all examples alike; others look at the input and are rows, never a bar."""


@dataclass(frozen=True, slots=True)
class ConstantPrediction:
    """The best constant prediction of a task: its name, and its score on the test split."""

    name: str
    score: float


def best_constant(table: ResultTable, baselines: Sequence[ResultRow], metric: Metric) -> ConstantPrediction | None:
    """The best of the constant baselines among `baselines`, and of blind guessing where the metric knows its score."""
    found = [] if metric.chance is None else [ConstantPrediction("blind guessing", metric.chance)]
    for run in baselines:
        tested = table.number(metric.name, run.at, split="test") if run.outcome == Outcome.OK else None
        if run.variant in CONSTANT and tested is not None:
            found.append(ConstantPrediction(run.variant, tested.value))
    return max(found, key=lambda one: metric.sign * one.score, default=None)


def learned_seeds(
    scores: Sequence[float], examples: int, draws: Draws | None, metric: Metric, constant: ConstantPrediction | None
) -> tuple[bool, ...]:
    """Whether each seed is above the constant prediction, by its 95 % interval over the test examples.

    Wilson's for accuracy; from the bootstrap `draws` (draws, seeds) for all else. Without a constant prediction, and
    without draws where they are needed, nothing shows that a seed did not learn, and it counts as one that did.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> learned_seeds([0.503, 0.60], 300, None, ACCURACY, ConstantPrediction("majority", 0.5))
    (False, True)
    """
    if constant is None or (draws is None and not metric.is_share):
        return (True,) * len(scores)
    if metric.is_share:
        return tuple(wilson(score, examples).low > constant.score for score in scores)
    assert draws is not None
    errors = draws.std(axis=0, ddof=1) * quantile(LEVEL, None)
    return tuple(
        bool(metric.sign * (score - constant.score) > error) for score, error in zip(scores, errors, strict=True)
    )


class Reached(NamedTuple):
    """The first validation at some level: after how many steps, and seconds of training."""

    step: int
    seconds: float


def first_at(curve: Curve, level: float, metric: Metric) -> Reached | None:
    """The first validation that is `level` or better; None where there is none. `level`: in the unit of the metric.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> points = [{"step": step, "validation_accuracy": step / 100, "seconds": step / 10} for step in (50, 90, 95)]
    >>> first_at(points, 0.9, ACCURACY)
    Reached(step=90, seconds=9.0)
    """
    for point in curve:
        value, seconds = point.get(f"validation_{metric.name}"), point.get("seconds")
        if isinstance(value, int | float) and metric.sign * (value - level) >= 0:
            return Reached(int(point["step"]), math.nan if seconds is None else float(seconds))
    return None
