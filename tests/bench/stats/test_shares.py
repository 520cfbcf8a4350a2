"""Shares of trainings: exact intervals and tests, beside those of scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from attnbench.bench.stats.intervals import Share, least_difference


@pytest.mark.parametrize("trained", [1, 3, 6, 10, 24])
def test_the_interval_is_that_of_clopper_and_pearson(trained: int) -> None:
    for learned in range(trained + 1):
        for level in (0.95, 0.999):
            found = Share(learned, trained).interval(level)
            expected = stats.binomtest(learned, trained).proportion_ci(level, method="exact")
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
            assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize(("mine", "theirs"), [(3, 3), (6, 6), (10, 10), (6, 10), (24, 24)])
def test_the_test_is_fishers(mine: int, theirs: int) -> None:
    for one in range(mine + 1):
        for other in range(theirs + 1):
            expected = stats.fisher_exact([[one, mine - one], [other, theirs - other]]).pvalue
            assert Share(one, mine).p_value(Share(other, theirs)) == pytest.approx(expected, rel=1e-9)


def test_six_of_six_and_one_of_six() -> None:
    assert Share(6, 6).p_value(Share(1, 6)) == pytest.approx(0.0152, abs=1e-4)


def test_the_least_difference_is_the_last_that_the_test_shows() -> None:
    for trained in (3, 6, 10, 24):
        for alpha in (0.05, 0.05 / 55 / 2, 1e-6):
            found = least_difference(trained, alpha)
            shown = [k for k in range(trained) if Share(trained, trained).p_value(Share(k, trained)) < alpha]
            assert shown == ([] if found is None else list(range(found + 1)))
