"""Shares of trainings: exact intervals and tests, beside those of scipy."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from attnbench.bench.stats.intervals import Share
from attnbench.bench.stats.shares import fisher_table, is_proven, least_difference, proven_below


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


@pytest.mark.parametrize("trained", [1, 4, 33])
def test_variants_that_learned_as_often_differ_nowhere_whatever_the_table(trained: int) -> None:
    assert (fisher_table(trained).diagonal() == 1).all() and proven_below(trained, 1) < 0.999
    assert not any(is_proven(Share(learned, trained), Share(learned, trained), 1) for learned in range(trained + 1))


def test_six_of_six_and_one_of_six() -> None:
    assert Share(6, 6).p_value(Share(1, 6)) == pytest.approx(0.0152, abs=1e-4)


def test_the_least_difference_is_the_last_that_the_test_shows() -> None:
    for trained in (3, 6, 10, 24):
        for pairs in (1, 10, 55, 5000):
            found = least_difference(trained, pairs)
            most = proven_below(trained, pairs) * (1 + 1e-9)
            shown = [k for k in range(trained) if Share(trained, trained).p_value(Share(k, trained)) <= most]
            assert shown == ([] if found is None else list(range(found + 1)))


@pytest.mark.parametrize("trained", [1, 3, 6, 12])
def test_the_table_has_the_p_values_of_scipy(trained: int) -> None:
    numbers = range(trained + 1)
    for one in numbers:
        expected = [stats.fisher_exact([[one, trained - one], [two, trained - two]]).pvalue for two in numbers]
        assert fisher_table(trained)[one] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trained", [600, 1030, 1500])
def test_the_table_of_more_trainings_than_a_float_can_count_has_exact_p_values(trained: int) -> None:
    """Exact fractions; products of the numbers of ways exceed a float from 515 trainings on, the numbers from 1,030.

    The smallest p-values are below the smallest float, and 0.
    """
    table = fisher_table(trained)
    ways = [math.comb(trained, one) for one in range(trained + 1)]
    for one, other in ((0, 0), (3, 1), (trained, trained - 9), (500, 400), (500, 500), (590, 500), (trained, 0)):
        both = one + other
        joint = [ways[each] * ways[both - each] for each in range(max(0, both - trained), min(both, trained) + 1)]
        rare = sum(each for each in joint if each <= ways[one] * ways[other])
        assert table[one, other] == pytest.approx(float(Fraction(rare, sum(joint))), rel=1e-9)
    assert ((table >= 0) & (table <= 1)).all() and (table == table.T).all()


def test_a_difference_of_many_trainings_is_proven() -> None:
    assert is_proven(Share(600, 600), Share(500, 600), 55)
    assert not is_proven(Share(300, 600), Share(298, 600), 55)


@pytest.mark.parametrize(("trained", "variants"), [(5, 5), (6, 11), (8, 6), (12, 11), (48, 11)])
def test_equal_variants_differ_falsely_on_at_most_half_of_the_boards_that_may_err(trained: int, variants: int) -> None:
    """Boards drawn with one share for all: 2.5 % at the worst share, and the next number would be too many."""
    rng = np.random.default_rng(trained)
    table, level = fisher_table(trained), proven_below(trained, variants * (variants - 1) // 2)
    smaller, larger = level * (1 + 1e-9), min(value for value in np.unique(table) if value > level * (1 + 1e-9))
    rates = []
    for share in (0.05, 0.2, 0.35, 0.5):
        learned = rng.binomial(trained, share, (40_000, variants))
        p_values = table[learned.min(axis=1), learned.max(axis=1)]
        rates.append([float((p_values <= most).mean()) for most in (smaller, larger * (1 + 1e-9))])
    worst = np.max(rates, axis=0)
    assert worst[0] < 0.0275 and worst[1] > 0.0225


def test_shares_of_several_groups_err_no_more_than_one_group() -> None:
    """Five variants that fail at every third seed beside six that fail at two of three: only pairs within count."""
    rng = np.random.default_rng(1)
    table, level = fisher_table(12), proven_below(12, 55) * (1 + 1e-9)
    groups = [rng.binomial(12, share, (40_000, count)) for share, count in ((2 / 3, 5), (1 / 3, 6))]
    false = [table[each.min(axis=1), each.max(axis=1)] <= level for each in groups]
    assert np.logical_or(*false).mean() < 0.025


def test_the_memory_of_a_level_is_that_of_a_few_tables() -> None:
    tracemalloc.start()
    try:
        proven_below.__wrapped__(300, 45)
        assert tracemalloc.get_traced_memory()[1] < 20 * 8 * 301**2
    finally:
        tracemalloc.stop()
