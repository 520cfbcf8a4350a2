"""Intervals against scipy.stats, and against the coverage that they promise."""

import math

import numpy as np
import pytest
from scipy import stats

from attnbench.bench.stats.intervals import Estimate, NoiseSource, mean_estimate, quantile, wilson


def test_quantiles_are_students() -> None:
    for freedom in (1, 2, 3, 4, 9, 10, 49, 500):
        for level in (0.5, 0.9, 0.95, 0.999, 1 - 1e-8):
            expected = stats.t.isf((1 - level) / 2, freedom)
            assert quantile(level, freedom) == pytest.approx(expected, rel=1e-9), (freedom, level)


def test_p_value_of_a_mean_is_that_of_the_t_test() -> None:
    sample = [0.4, 1.1, 0.2, 0.9, 0.7]
    assert mean_estimate(sample).p_value() == pytest.approx(stats.ttest_1samp(sample, 0.0).pvalue, rel=1e-6)


def test_interval_of_a_mean_is_students() -> None:
    sample = [0.4, 1.1, 0.2]
    low, high = stats.t.interval(0.95, 2, np.mean(sample), stats.sem(sample))
    found = mean_estimate(sample).interval()
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize(("right", "count"), [(0, 20), (7, 20), (20, 20), (618, 1000)])
def test_interval_of_a_share_is_wilsons(right: int, count: int) -> None:
    oracle = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
    found = wilson(right / count, count)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_p_value_and_interval_tell_the_same() -> None:
    estimate = Estimate(3.0, (NoiseSource(0.5, 2), NoiseSource(0.8)))
    edge = estimate.interval(1 - estimate.p_value())
    assert edge.low == pytest.approx(0.0, abs=1e-9)


def test_without_noise_any_gap_is_certain_and_no_gap_is_none() -> None:
    assert Estimate(0.1).p_value() == 0.0
    assert Estimate(0.0).p_value() == 1.0


@pytest.mark.parametrize(("of_seeds", "of_test"), [(1.0, 0.0), (1.0, 1.0), (0.2, 1.0), (0.0, 1.0)])
def test_two_sources_of_noise_cover_what_they_promise(of_seeds: float, of_test: float) -> None:
    """20,000 draws of three seeds judged on one test set; the interval must hold the truth in at least 95 % of them."""
    rng = np.random.default_rng(7)
    seeds = rng.normal(0, of_seeds, (20_000, 3))
    means = seeds.mean(1) + rng.normal(0, of_test, 20_000)
    errors = seeds.std(1, ddof=1) / math.sqrt(3)
    half = np.hypot(errors * quantile(0.95, 2), of_test * quantile(0.95, None))
    assert np.mean(np.abs(means) <= half) >= 0.945


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        mean_estimate([1.0])
