"""Power formulas against simulation and against scipy's noncentral t."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attnbench.bench.stats.intervals import (
    MOST_SEEDS,
    Estimate,
    NoiseSource,
    minimal_detectable_effect,
    power,
    quantile,
    seeds_needed,
)


@pytest.mark.parametrize("freedom", [2, 4, 10.5, 60])
@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 15])
def test_one_source_is_the_noncentral_t(freedom: float, level: float) -> None:
    noise = [NoiseSource(0.7, freedom)]
    found = minimal_detectable_effect(noise, level)
    assert stats.nct.sf(quantile(level, freedom), freedom, found / 0.7) == pytest.approx(0.8, abs=1e-6)
    assert power(found, noise, level) == pytest.approx(0.8, abs=1e-6)


def test_many_degrees_of_freedom_are_the_normal() -> None:
    expected = stats.norm.ppf(0.975) + stats.norm.ppf(0.9)
    assert minimal_detectable_effect([NoiseSource(2.0)], 0.95, power=0.9) == pytest.approx(2 * expected)
    assert minimal_detectable_effect([NoiseSource(2.0, 10**7)], 0.95, power=0.9) == pytest.approx(2 * expected)


@pytest.mark.parametrize("of_test", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 15])
def test_four_of_five_boards_find_the_minimal_effect(of_test: float, level: float) -> None:
    """Seeds with a deviation of 1 (8 degrees of freedom), test examples with a known error."""
    rng = np.random.default_rng(11)
    noise = (NoiseSource(math.sqrt(2 / 5), 8), NoiseSource(of_test))
    effect = minimal_detectable_effect(noise, level)
    draws = 20_000
    errors = np.sqrt(2 / 5) * np.sqrt(rng.chisquare(8, draws) / 8)
    found = effect + rng.normal(0, math.hypot(*(n.error for n in noise)), draws)
    widths = np.hypot(errors * quantile(level, 8), of_test * quantile(level, None))
    # the noise of two sources has Satterthwaite's degrees of freedom only nearly
    assert float((found > widths).mean()) == pytest.approx(0.8, abs=0.02)


def test_the_power_of_no_difference_is_half_the_error() -> None:
    assert power(0.0, [NoiseSource(1.0, 8)], 0.95) == pytest.approx(0.025, abs=1e-6)


def test_seeds_needed_is_the_smallest_number_that_suffices() -> None:
    def noise_of(seeds: int) -> list[NoiseSource]:
        return [NoiseSource(math.sqrt(2 / seeds), 2 * (seeds - 1)), NoiseSource(0.1)]

    for difference in (0.6, 1.0, 2.0, 5.0, 20.0):
        found = seeds_needed(difference, noise_of, 0.99)
        assert found is not None and power(difference, noise_of(found), 0.99) >= 0.8
        assert found == 2 or power(difference, noise_of(found - 1), 0.99) < 0.8
    assert seeds_needed(20.0, noise_of, 0.99, least=3) == 3


def test_two_groups_need_the_seeds_of_the_t_test() -> None:
    # Cohen 1988: an effect of one standard deviation needs 17 a group
    assert seeds_needed(1.0, lambda n: [NoiseSource(math.sqrt(2 / n), 2 * (n - 1))], 0.95) == 17


def test_no_number_of_seeds_finds_what_the_test_examples_hide() -> None:
    def noise_of(seeds: int) -> list[NoiseSource]:
        return [NoiseSource(1 / seeds, seeds - 1), NoiseSource(1.0)]

    assert seeds_needed(1.0, noise_of, 0.95) is None
    assert seeds_needed(0.0, noise_of, 0.95) is None
    assert seeds_needed(4.0, noise_of, 0.95) is not None and MOST_SEEDS >= 100


def test_without_noise_every_difference_is_found() -> None:
    assert minimal_detectable_effect([], 0.95) == 0.0 and power(1e-9, [], 0.95) == 1.0
    assert Estimate(1.0).half_width() == 0.0
