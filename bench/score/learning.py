"""Learned or not: which trainings of a variant failed, whether a task was learned, and how soon a level was reached.

Boards compute it; no Record says it.

A constant prediction answers all examples alike: the most frequent class, or the frequency of each token. A task whose
trivial predictors are not known, such as one without baselines, has no bar.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
"""Baselines that answer all examples alike; others look at the input."""

HALFWAY = 0.5
"""The share of the way from the constant prediction to the best seed below which a training failed. One value for all
tasks and variants, so that nobody sets it by the scores; docs/scoring_simulations.md says what another would do."""


@dataclass(frozen=True, slots=True)
class TrivialPrediction:
    """The best trivial predictor of some kind for a task: its name, and its score on the test split."""

    name: str
    score: float


class TrivialBaselines(NamedTuple):
    """The best constant prediction, which tells whether a task was learned, and the best trivial predictor of any kind.

    None where no such score is known.
    """

    constant: TrivialPrediction | None = None
    trivial: TrivialPrediction | None = None


def bars_of(table: ResultTable, baselines: Sequence[ResultRow], metric: Metric) -> TrivialBaselines:
    """The bars from `baselines`, and from blind guessing where the metric knows its score."""
    found = [] if metric.chance is None else [TrivialPrediction("blind guessing", metric.chance)]
    constants = list(found)
    for run in baselines:
        tested = table.number(metric.name, run.at, split="test") if run.outcome == Outcome.OK else None
        if tested is not None:
            found.append(TrivialPrediction(run.variant, tested.value))
            constants += found[-1:] if run.variant in CONSTANT else []
    return TrivialBaselines(_best(constants, metric), _best(found, metric))


def _best(found: Collection[TrivialPrediction], metric: Metric) -> TrivialPrediction | None:
    return max(found, key=lambda one: metric.sign * one.score, default=None)


def above(
    scores: Sequence[float],
    examples: int,
    draws: Draws | None,
    metric: Metric,
    bar: TrivialPrediction | None,
    level: float = LEVEL,
) -> tuple[bool, ...]:
    """True for each seed that is above the bar, by its interval over the test examples.

    Wilson's for accuracy; from the bootstrap `draws` (draws, seeds) for all else. Without a bar, and without draws
    where they are needed, nothing shows that a seed is not, and it counts as one that is.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> above([0.503, 0.60], 300, None, ACCURACY, TrivialPrediction("majority", 0.5))
    (False, True)
    """
    if bar is None or (draws is None and not metric.is_share):
        return (True,) * len(scores)
    if metric.is_share:
        return tuple(wilson(score, examples, level).low > bar.score for score in scores)
    assert draws is not None
    errors = draws.std(axis=0, ddof=1) * quantile(level, None)
    return tuple(bool(metric.sign * (score - bar.score) > error) for score, error in zip(scores, errors, strict=True))


def learned_seeds(
    scores: Sequence[float], examples: int, draws: Draws | None, metric: Metric, bars: TrivialBaselines
) -> tuple[bool, ...]:
    """True for each seed that learned; False for all of a variant that is nowhere above the best trivial predictor.

    Otherwise the seeds learned that are better than this predictor, and at least halfway from the best constant
    prediction to the variant's own best seed: trainings that fail stay near the first and those that learn are near
    the second. No Record of another variant moves the bar. The level of the interval of the best seed is corrected for
    the number of seeds that it is the best of.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> bars = TrivialBaselines(TrivialPrediction("majority", 0.01), TrivialPrediction("first-value", 0.09))
    >>> learned_seeds([0.99, 0.11, 0.98, 0.45], 448, None, ACCURACY, bars)
    (True, False, True, False)
    >>> learned_seeds([0.10, 0.11, 0.09], 448, None, ACCURACY, bars)
    (False, False, False)
    """
    if bars.trivial is None or not scores:
        return (True,) * len(scores)
    if not any(above(scores, examples, draws, metric, bars.trivial, 1 - (1 - LEVEL) / len(scores))):
        return (False,) * len(scores)
    signed = [metric.sign * score for score in scores]
    low = metric.sign * (bars.constant or bars.trivial).score
    bar = low + HALFWAY * (max(signed) - low)
    return tuple(score >= bar and score > metric.sign * bars.trivial.score for score in signed)


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
