"""How costs grow with length."""

import math

import numpy as np
import pytest

from attnbench.bench.stats.intervals import Estimate, NoiseSource
from attnbench.bench.stats.scaling import exponent, log_cost

LENGTHS = (256, 512, 1024, 2048, 4096)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_a_power_is_found_however_large_the_constant_cost_of_short_lengths(power: float) -> None:
    costs = {n: Estimate(math.log(1e-9 * n**power + (1.0 if n < 1024 else 0.0))) for n in LENGTHS}
    assert exponent(costs).value == pytest.approx(power, abs=1e-9)


def test_the_slope_is_that_of_least_squares() -> None:
    draw = np.random.default_rng(0)
    values = {n: 1.7 * math.log(n) + draw.normal(0, 0.1) for n in LENGTHS}
    found = exponent({n: Estimate(v) for n, v in values.items()})
    upper = {n: values[n] for n in (1024, 2048, 4096)}
    assert found.value == pytest.approx(np.polyfit(np.log(list(upper)), list(upper.values()), 1)[0], abs=1e-9)


def test_its_interval_covers_the_true_exponent_about_as_often_as_it_says() -> None:
    draw, hits = np.random.default_rng(1), 0
    for _ in range(300):
        costs = {n: Estimate(2 * math.log(n) + draw.normal(0, 0.05), (NoiseSource(0.05),)) for n in LENGTHS}
        ends = exponent(costs).interval()
        hits += ends.low <= 2.0 <= ends.high
    assert hits >= 0.93 * 300


def test_a_bend_widens_the_interval() -> None:
    straight = {n: Estimate(2 * math.log(n), (NoiseSource(0.01),)) for n in LENGTHS}
    bent = straight | {2048: Estimate(2 * math.log(2048) + 0.3, (NoiseSource(0.01),))}
    assert exponent(bent).half_width() > 5 * exponent(straight).half_width()


def test_one_length_has_no_exponent() -> None:
    assert exponent({256: Estimate(1.0)}) is None and exponent({}) is None


def test_the_log_of_a_cost_is_that_of_its_geometric_mean() -> None:
    assert math.exp(log_cost([2.0, 8.0, 4.0]).value) == pytest.approx(4.0)
