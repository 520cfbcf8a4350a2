"""Learned or not: which trainings of a variant failed, whether a task was learned, and how soon a level was reached.

Boards compute it; no Record says it.

A constant prediction answers all examples alike: the most frequent class, or the frequency of each token. A task whose
trivial predictors are not known, such as one without baselines, has no bar.

The bar between trainings that learned and those that failed lies halfway from the best constant prediction to the score
of a model that solves the task, where the task states one. It is then the same for all: seeds of a variant that all
failed do not make a bar of their own.
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
from ..store.rows import ResultRow, installed_ceiling
from ..store.table import ResultTable

CONSTANT = ("majority", "unigram")
"""Baselines that answer all examples alike; others look at the input."""

HALFWAY = 0.5
"""The share of the way from the constant prediction to the ceiling below which a training failed. One value for all
tasks and variants, so that nobody sets it by the scores; docs/scoring_simulations.md says what another would do."""


@dataclass(frozen=True, slots=True)
class TrivialPrediction:
    """The best trivial predictor of some kind for a task: its name, and its score on the test split."""

    name: str
    score: float


class TrivialBaselines(NamedTuple):
    """The best constant prediction, which tells whether a task was learned, and the best trivial predictor of any kind.

    None where no such score is known. `ceiling`: the score of a model that solves the task, None where nobody knows;
    used of shares alone.
    """

    constant: TrivialPrediction | None = None
    trivial: TrivialPrediction | None = None
    ceiling: float | None = 1.0

    def absolute_bar(self, ceiling: float) -> float:
        """Halfway from the best constant prediction to `ceiling`."""
        low = 0.0 if self.constant is None else self.constant.score
        return low + HALFWAY * (ceiling - low)


def bars_of(table: ResultTable, baselines: Sequence[ResultRow], metric: Metric) -> TrivialBaselines:
    """The bars from `baselines`, and from blind guessing where the metric knows its score."""
    found = [] if metric.chance is None else [TrivialPrediction("blind guessing", metric.chance)]
    constants = list(found)
    for run in baselines:
        tested = table.number(metric.name, run.at, split="test") if run.outcome == Outcome.OK else None
        if tested is not None:
            found.append(TrivialPrediction(run.variant, tested.value))
            constants += found[-1:] if run.variant in CONSTANT else []
    ceiling = installed_ceiling(baselines[0].task) if baselines else None
    return TrivialBaselines(_best(constants, metric), _best(found, metric), ceiling)


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
    prediction to the ceiling of the task, or, where nobody knows one, to the variant's own best seed: trainings that
    fail stay near the first and those that learn are near the second. No Record of another variant moves the bar. The
    level of the interval of the best seed is corrected for the number of seeds that it is the best of.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> bars = TrivialBaselines(TrivialPrediction("majority", 0.01), TrivialPrediction("first-value", 0.09))
    >>> learned_seeds([0.99, 0.11, 0.98, 0.45], 448, None, ACCURACY, bars)
    (True, False, True, False)
    >>> learned_seeds([0.10, 0.11, 0.09], 448, None, ACCURACY, bars)
    (False, False, False)
    >>> [learned_seeds([0.40, 0.38], 448, None, ACCURACY, bars._replace(ceiling=best)) for best in (1.0, None)]
    [(False, False), (True, True)]
    """
    if bars.trivial is None or not scores:
        return (True,) * len(scores)
    if not any(above(scores, examples, draws, metric, bars.trivial, 1 - (1 - LEVEL) / len(scores))):
        return (False,) * len(scores)
    signed = [metric.sign * score for score in scores]
    if metric.is_share and bars.ceiling is not None:
        bar = bars.absolute_bar(bars.ceiling)
    else:
        low = metric.sign * (bars.constant or bars.trivial).score
        bar = low + HALFWAY * (max(signed) - low)
    return tuple(score >= bar and score > metric.sign * bars.trivial.score for score in signed)


def in_doubt(scores: Sequence[float], learned: Sequence[bool], metric: Metric, bars: TrivialBaselines) -> bool:
    """True if seeds count as learned beside the variant's own best alone, so that all of them may have failed.

    Of shares alone: a seed that is halfway to a perfect score learned in any case, whatever the ceiling.

    >>> from attnbench.bench.core.metrics import ACCURACY
    >>> bars = TrivialBaselines(TrivialPrediction("majority", 0.5), ceiling=None)
    >>> in_doubt([0.64, 0.66], [True, True], ACCURACY, bars), in_doubt([0.94, 0.96], [True, True], ACCURACY, bars)
    (True, False)
    """
    if not metric.is_share or bars.constant is None or bars.ceiling is not None:
        return False
    bar = bars.absolute_bar(1.0)
    return any(counts and score < bar for score, counts in zip(scores, learned, strict=True))


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
