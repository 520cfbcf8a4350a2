"""Scoring: the rules that turn samples into figures that may be compared. Pure functions of numbers.

Cost is a ratio to the reference in the same rounds; quality is points against the reference on the same seeds and
examples; neither is ever multiplied into the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.metrics import Interval
from .bootstrap import inflation
from .intervals import LEVEL, Estimate, NoiseSource, mean_estimate, wilson

CAP = 64.0
"""No cost counts as more than this many times the reference's; a failure counts as exactly this."""
BATCHES = 10

Correct = npt.NDArray[Any]
"""The correctness of each example: 0 or 1, or the share of its answers that are right."""

Draws = npt.NDArray[np.float64]
Verdict = Literal["better", "within margin", "worse", "undecided"]


def log_ratio(costs: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Logarithm of the geometric mean of cost over reference, round by round, with a t interval over rounds.

    From 20 rounds on, consecutive rounds are averaged into ten batches first: neighbours in time are not independent,
    and a batch holds the order A B C as often as C B A.

    >>> math.exp(log_ratio([2.0, 1.0, 4.0], [4.0, 2.0, 8.0]).value)
    0.5
    """
    if len(costs) != len(reference):
        raise ValueError(f"expected samples of the same rounds, got {len(costs)} and {len(reference)}")
    return mean_estimate(log_ratios(costs, reference))


def log_ratios(costs: Sequence[float], reference: Sequence[float]) -> npt.NDArray[np.float64]:
    """The draws behind `log_ratio`: log-ratios by round, or by batch where there are many rounds."""
    values = np.log(np.asarray(costs, dtype=np.float64)) - np.log(np.asarray(reference, dtype=np.float64))
    if len(values) < 2 * BATCHES:
        return values
    if len(values) % BATCHES == 0:
        means: npt.NDArray[np.float64] = values.reshape(BATCHES, -1).mean(axis=1)
        return means
    return np.array([batch.mean() for batch in np.array_split(values, BATCHES)])


def ratio(estimate: Estimate, level: float = LEVEL) -> Interval:
    """The ratio that a log-ratio stands for, with its interval; no end exceeds the cap.

    >>> ratio(Estimate(math.log(100.0))).value
    64.0
    """
    ends = estimate.interval(level)
    return Interval(*(min(math.exp(min(end, 700.0)), CAP) for end in (ends.value, ends.low, ends.high)))


def capped(estimate: Estimate | None) -> Estimate:
    """The log-ratio that a rank uses: the cap, without noise, for a failure (None) and for all beyond it.

    >>> round(math.exp(capped(None).value), 9), capped(Estimate(math.log(1000.0), (NoiseSource(0.1),))).noise
    (64.0, ())
    """
    top = Estimate(math.log(CAP))
    return top if estimate is None or estimate.value >= top.value else estimate


def geometric_mean(ratios: Sequence[float]) -> float:
    """Twice as fast here and twice as slow there is as fast; an arithmetic mean would say 1.25 of it and its opposite.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios))


def accuracy(
    shares: Sequence[float],
    examples: int,
    correct: Sequence[Correct] | None = None,
    of_seeds: NoiseSource | None = None,
    documents: npt.NDArray[Any] | None = None,
) -> Interval:
    """Mean accuracy over seeds, with an interval over seeds (t) and over test examples, added in quadrature.

    All seeds are judged on the same examples, so the noise of the test set does not shrink with seeds. `correct`: 0 or
    1 per example, or a share, one array a seed; without them the seeds are taken to err on the same examples (Wilson),
    which is the widest that can be. `of_seeds`: the noise of the mean over seeds, the seeds' own where it is None.
    `documents`: as in `stats.dependence`. One seed gives the noise of the test set alone.

    >>> accuracy([0.5, 0.5, 0.5], 100) == wilson(0.5, 100)
    True
    """
    mean = float(np.mean(shares))
    of_test = wilson(mean, examples)
    if correct:
        stacked = np.stack(correct).astype(np.float64)
        width = inflation(stacked.mean(axis=0), documents)
        spread = math.sqrt(mean * (1 - mean))
        if len(correct) > 1 and spread:
            of_one = float(stacked.var(axis=1).mean())
            shared = shared_variance(float(stacked.mean(axis=0).var()), of_one, len(correct))
            width *= min(1.0, math.sqrt(shared) / spread)
        of_test = Interval(mean, mean - (mean - of_test.low) * width, mean + (of_test.high - mean) * width)
    seeds = Estimate(mean, (of_seeds,) if of_seeds else _noise_of_seeds(shares)).half_width()
    low = mean - math.hypot(seeds, mean - of_test.low)
    high = mean + math.hypot(seeds, of_test.high - mean)
    return Interval(mean, max(low, 0.0), min(high, 1.0))


def shared_variance(of_mean: float, of_one: float, seeds: int) -> float:
    """The part of a variance over examples that all seeds share, from that of their mean and the mean of theirs.

    A model errs on some examples because they are hard for it (at every seed), on others by the luck of its training.
    The second part moves the scores of seeds apart, and their variance over seeds holds it already: counted among the
    examples too, it would make intervals cover more than they say.

    With E shared and L by luck, the mean of S seeds has E + L/S and one seed has E + L.

    >>> shared_variance(of_mean=2.0 + 0.9 / 3, of_one=2.0 + 0.9, seeds=3).__round__(9)
    2.0
    """
    if seeds < 2:
        return of_mean
    return max((seeds * of_mean - of_one) / (seeds - 1), 0.0)


def accuracy_difference(
    ours: Sequence[float],
    theirs: Sequence[float],
    examples: int,
    our_correct: Sequence[Correct] | None = None,
    their_correct: Sequence[Correct] | None = None,
    documents: npt.NDArray[Any] | None = None,
) -> Estimate:
    """Mean difference of two variants' accuracies on the same seeds, with the noise of seeds (t) and of test examples.

    `our_correct`, `their_correct`: 0 or 1 per example, one array a seed. With both the examples are paired: the
    difference at each, as far as all seeds share it, is one draw. Without them the two are taken to err independently,
    which is wider. `documents`: as in `stats.dependence`. No two are closer than one example can tell. One seed has no
    noise of seeds: the caller must say so.

    >>> difference = accuracy_difference([0.62, 0.60, 0.64], [0.60, 0.59, 0.61], 1000)
    >>> round(difference.value, 3), [n.freedom for n in difference.noise]
    (0.02, [2, None])
    """
    if our_correct is not None and their_correct is not None:
        one, other = (np.stack(each).astype(np.float64) for each in (our_correct, their_correct))
        mean = one.mean(axis=0) - other.mean(axis=0)
        of_one = float(np.mean(((one - other) ** 2).mean(axis=1) - (one.mean(axis=1) - other.mean(axis=1)) ** 2))
        test = math.sqrt(shared_variance(float(mean.var()), of_one, len(one)) / max(len(mean) - 1, 1))
        test *= inflation(mean, documents)
    else:
        p, q = (math.fsum(shares) / len(shares) for shares in (ours, theirs))
        test = math.sqrt((p * (1 - p) + q * (1 - q)) / examples)
    return _mean_difference(ours, theirs, (NoiseSource(max(test, 1 / examples)),))


def corpus_level(scores: Sequence[float], draws: Draws | None = None, of_seeds: NoiseSource | None = None) -> Interval:
    """Mean over seeds of a score that is no share, such as BLEU, with an interval over seeds (t) and test examples.

    `draws`: (draws, seeds), the scores of resampled examples; every seed is judged on the same. Without them the
    interval is over seeds alone, on these very examples. The squares of both half-widths are added. `of_seeds`: the
    noise of the mean over seeds, the seeds' own where it is None.

    >>> draws = np.array([[19.0, 21.0, 20.0], [21.0, 23.0, 22.0]])  # 20 and 22, each seed alike: error √2
    >>> alone, both = corpus_level([20.0, 22.0, 21.0]), corpus_level([20.0, 22.0, 21.0], draws)
    >>> round(alone.high - 21, 3), round(both.high - 21, 3)  # 4.303 / √3; with 1.96 × √2 in squares
    (2.484, 3.722)
    """
    seeds = (of_seeds,) if of_seeds else _noise_of_seeds(scores)
    return Estimate(math.fsum(scores) / len(scores), (*seeds, *_noise_of(draws))).interval()


def corpus_difference(
    ours: Sequence[float], theirs: Sequence[float], our_draws: Draws | None = None, their_draws: Draws | None = None
) -> Estimate:
    """Mean difference of two variants' scores on the same seeds, with the noise of seeds (t) and of test examples.

    Draws as in `corpus_level`: the same examples in the same draw, so that they are paired; the deviation of the
    difference over draws is its error (Koehn 2004 resamples translations so).

    >>> ours, theirs = np.array([[30.0], [34.0]]), np.array([[29.0], [32.0]])  # ahead by 1 and by 2
    >>> corpus_difference([32.0], [30.5], ours, theirs).noise == (NoiseSource(math.sqrt(0.5)),)
    True
    """
    draws = our_draws - their_draws if our_draws is not None and their_draws is not None else None
    return _mean_difference(ours, theirs, _noise_of(draws))


def _mean_difference(ours: Sequence[float], theirs: Sequence[float], of_test: tuple[NoiseSource, ...]) -> Estimate:
    differences = [float(one) - float(other) for one, other in zip(ours, theirs, strict=True)]
    return Estimate(math.fsum(differences) / len(differences), (*_noise_of_seeds(differences), *of_test))


def _noise_of_seeds(values: Sequence[float]) -> tuple[NoiseSource, ...]:
    return mean_estimate(values).noise if len(values) > 1 else ()


def _noise_of(draws: Draws | None) -> tuple[NoiseSource, ...]:
    if draws is None:
        return ()
    of_mean, of_one = float(draws.mean(axis=1).var(ddof=1)), float(draws.var(axis=0, ddof=1).mean())
    return (NoiseSource(math.sqrt(shared_variance(of_mean, of_one, draws.shape[1]))),)


def verdict(difference: Interval, margin: float) -> Verdict:
    """The judgement that a difference to the reference proves, higher being better; `margin` in the same unit.

    >>> verdict(Interval(-0.2, -0.8, 0.4), margin=1.0), verdict(Interval(-0.2, -2.0, 1.6), margin=1.0)
    ('within margin', 'undecided')
    """
    if difference.low > 0:
        return "better"
    if difference.low > -margin:
        return "within margin"
    return "worse" if difference.high < -margin else "undecided"


def noise_floor(controls: Sequence[Estimate]) -> float:
    """The largest log-ratio that code which is the reference's own may show; no smaller difference means anything.

    >>> round(noise_floor([Estimate(0.01, (NoiseSource(0.005),))]), 4)
    0.0198
    """
    return max((abs(c.value) + c.half_width() for c in controls), default=0.0)
