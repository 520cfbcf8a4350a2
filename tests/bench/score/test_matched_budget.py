"""Quality after equal time, and at equal decode state."""

import math

import pytest

from attnbench.bench.score.contrasts import Contrasts
from attnbench.bench.score.cost import RelativeCost
from attnbench.bench.score.pareto import advantage_at_equal_state, advantage_at_equal_time
from attnbench.bench.score.quality import SeedScores
from attnbench.bench.stats.intervals import Estimate


def curve(slope: float, steps: int = 100) -> list[dict[str, float]]:
    points = range(0, steps + 1, 10)
    return [{"step": s, "validation_accuracy": 0.5 + slope * s / 1000, "validation_loss": 1.0} for s in points]


CURVES = {
    f"{name}{seed}": curve(slope + seed / 10) for name, slope in (("ref", 1.0), ("own", 1.5)) for seed in range(3)
}


def scores(name: str, seeds: int = 3) -> SeedScores:
    return SeedScores(variant=name, seeds=tuple(range(seeds)), scores=(0.6,) * seeds, examples=100,
                  curves=tuple(f"{name}{seed}" for seed in range(seeds)))  # fmt: skip


def timing(ratio: float) -> RelativeCost:
    return RelativeCost(variant="own", row=0, cost=Estimate(math.log(ratio)))


def test_as_fast_means_equal_steps() -> None:
    found = advantage_at_equal_time(scores("own"), scores("ref"), timing(1.0), CURVES.get)
    assert found is not None and found.value == pytest.approx(0.05)


def test_twice_as_slow_gets_half_the_steps() -> None:
    # by seed: 0.5 + (1.5 + s/10) × 50/1000, less 0.5 + (1 + s/10) × 100/1000
    found = advantage_at_equal_time(scores("own"), scores("ref"), timing(2.0), CURVES.get)
    expected = [(1.5 + s / 10) * 0.05 - (1 + s / 10) * 0.1 for s in range(3)]
    assert found is not None and found.value == pytest.approx(sum(expected) / 3)
    assert found.interval().high - found.value == pytest.approx(4.3027 * 0.005 / 3**0.5, rel=1e-3)


def test_twice_as_fast_is_not_trained_on() -> None:
    found = advantage_at_equal_time(scores("own"), scores("ref"), timing(0.5), CURVES.get)
    assert found is not None and found.value == pytest.approx(0.05)


def test_what_is_not_known_is_not_told() -> None:
    assert advantage_at_equal_time(scores("own"), scores("ref"), timing(1.0), lambda name: None) is None
    assert advantage_at_equal_time(scores("own", 2), scores("ref"), timing(1.0), CURVES.get) is None
    assert advantage_at_equal_time(scores("own"), scores("ref"), RelativeCost(variant="own", row=0), CURVES.get) is None
    far_too_slow = advantage_at_equal_time(
        scores("own"), scores("ref"), timing(60.0), {**CURVES, "own0": curve(1)[1:]}.get
    )
    assert far_too_slow is None


def scored(name: str, *shares: float, missing_reason: str = "") -> SeedScores:
    return SeedScores(variant=name, seeds=(0, 1, 2), scores=shares, examples=100, missing_reason=missing_reason)


STATE = {"small": 10.0, "middle": 20.0, "twin": 20.0, "large": 80.0}
SCORED = {
    "small": scored("small", 0.60, 0.61, 0.62),
    "middle": scored("middle", 0.58, 0.59, 0.60),
    "twin": scored("twin", 0.50, 0.51, 0.52),
    "large": scored("large", 0.70, 0.72, 0.74),
    "failed": scored("failed", 0.9, 0.9, 0.9, missing_reason="crashed"),
}


@pytest.mark.parametrize(
    ("name", "rival", "points"), [("large", "small", 11.0), ("middle", "small", -2.0), ("twin", "small", -10.0)]
)
def test_the_rival_is_the_most_accurate_with_no_more_state(name: str, rival: str, points: float) -> None:
    found = advantage_at_equal_state(name, Contrasts(SCORED), STATE | {"failed": 1.0})
    assert found is not None and found.name == rival
    assert 100 * found.contrast.advantage.value == pytest.approx(points)


def test_the_same_state_counts_as_no_more() -> None:
    found = advantage_at_equal_state("twin", Contrasts({n: SCORED[n] for n in ("twin", "middle", "large")}), STATE)
    assert found is not None and found.name == "middle"


def test_the_smallest_state_and_what_was_not_measured_have_no_rival() -> None:
    assert advantage_at_equal_state("small", Contrasts(SCORED), STATE) is None
    assert advantage_at_equal_state("failed", Contrasts(SCORED), STATE | {"failed": 99.0}) is None
    assert (
        advantage_at_equal_state("large", Contrasts(SCORED), {n: s for n, s in STATE.items() if n != "large"}) is None
    )
