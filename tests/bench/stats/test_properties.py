"""The laws of scoring, as properties; and how often the rules of other boards break the first of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.bench.stats.intervals import Estimate, NoiseSource
from attnbench.bench.stats.ranking import RankInterval, rank_intervals
from attnbench.bench.stats.scoring import accuracy_difference, capped, geometric_mean, log_ratio, ratio

SECONDS = st.floats(1e-6, 1e3)
QUIET = settings(deadline=None, max_examples=60, derandomize=True)


@st.composite
def rounds(draw: st.DrawFn, least: int = 2, most: int = 6) -> dict[str, list[float]]:
    """Seconds by variant, one a round: a level for each, and a wobble of each round."""
    names = [chr(ord("a") + i) for i in range(draw(st.integers(least, most)))]
    count = draw(st.integers(3, 25))
    levels = draw(st.lists(SECONDS, min_size=len(names), max_size=len(names)))
    wobble = draw(st.lists(st.floats(0.9, 1.1), min_size=count * len(names), max_size=count * len(names)))
    grid = np.reshape(wobble, (len(names), count)) * np.array(levels)[:, None]
    return dict(zip(names, grid.tolist(), strict=True))


def places(costs: dict[str, list[float]], floor: float = 0.0) -> dict[str, RankInterval]:
    """Rank intervals by cost, the first variant being the reference."""
    return {s.name: s for s in order(costs, floor)}


def order(costs: dict[str, list[float]], floor: float = 0.0) -> list[RankInterval]:
    return rank_intervals(list(costs), lambda one, other: log_ratio(costs[other], costs[one]), floor)


@QUIET
@given(rounds(least=3))
def test_a_new_variant_changes_no_ratio_and_reverses_no_proven_order(costs: dict[str, list[float]]) -> None:
    *_, new = costs
    fewer = {name: seconds for name, seconds in costs.items() if name != new}
    before, after = places(fewer), places(costs)
    for one in fewer:
        for other in fewer:
            # proven before, and proven the other way round after, is what must not be
            if before[one].last < before[other].first:
                assert not after[other].last < after[one].first
                assert not (after[other].first < after[one].first and after[other].last < after[one].last)


@QUIET
@given(rounds(), st.randoms(use_true_random=False))
def test_the_order_of_entry_means_nothing(costs: dict[str, list[float]], chance: object) -> None:
    names = list(costs)
    chance.shuffle(names)
    assert order({name: costs[name] for name in names}) == order(costs)


@QUIET
@given(rounds(), st.sampled_from([2.0**-20, 0.5, 1024.0]))
def test_the_unit_means_nothing(costs: dict[str, list[float]], scale: float) -> None:
    scaled = {name: [scale * second for second in seconds] for name, seconds in costs.items()}
    reference = next(iter(costs))
    for name in costs:
        here, there = (ratio(log_ratio(c[name], c[reference])) for c in (costs, scaled))
        assert (there.value, there.low, there.high) == pytest.approx((here.value, here.low, here.high), rel=1e-9)
    assert order(scaled) == order(costs)


@QUIET
@given(rounds(), st.floats(1.0, 100.0), st.data())
def test_a_slower_variant_never_gains_a_place(costs: dict[str, list[float]], by: float, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(costs)))
    worse = costs | {name: [by * second for second in costs[name]]}
    before, after = places(costs)[name], places(worse)[name]
    assert after.first >= before.first and after.last >= before.last


@QUIET
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 2)), min_size=3, max_size=7), st.floats(0, 5), st.data()
)  # fmt: skip
def test_fewer_points_never_gain_a_place(variants: list[tuple[float, float]], by: float, data: st.DataObject) -> None:
    """Pairs of very different precision: what step-down corrections break."""
    names = [chr(ord("a") + i) for i in range(len(variants))]
    errors = {name: error for name, (_, error) in zip(names, variants, strict=True)}
    points = {name: point for name, (point, _) in zip(names, variants, strict=True)}
    name = data.draw(st.sampled_from(names))

    def find(level: dict[str, float]) -> RankInterval:
        pairs = {frozenset((o, p)): errors[o] * errors[p] for o in names for p in names}
        gap: Callable[[str, str], Estimate] = lambda o, p: Estimate(  # noqa: E731
            level[o] - level[p], (NoiseSource(pairs[frozenset((o, p))], 2),)
        )
        return next(s for s in rank_intervals(names, gap) if s.name == name)

    before, after = find(points), find(points | {name: points[name] - by})
    assert after.first >= before.first and after.last >= before.last


@QUIET
@given(st.lists(st.floats(0.2, 0.9), min_size=3, max_size=6), st.floats(0.0, 0.2), st.integers(0, 5))
def test_a_worse_seed_never_raises_a_score(shares: list[float], by: float, at: int) -> None:
    reference = [0.5] * len(shares)
    worse = list(shares)
    worse[at % len(worse)] -= by
    assert accuracy_difference(worse, reference, 500).value <= accuracy_difference(shares, reference, 500).value


@QUIET
@given(st.lists(st.floats(0.01, 500), min_size=2, max_size=8), st.integers(0, 7))
def test_failing_where_one_is_slow_never_pays(ratios: list[float], at: int) -> None:
    logs = [capped(Estimate(float(np.log(r)))).value for r in ratios]
    failed = [capped(None).value if i == at % len(logs) else value for i, value in enumerate(logs)]
    assert geometric_mean(list(np.exp(failed))) >= geometric_mean(list(np.exp(logs))) * (1 - 1e-12)


def win_rate(costs: np.ndarray) -> np.ndarray:
    """Mean share of the others that a variant beats, task by task: HELM's mean win rate, and Borda counts alike."""
    return -(costs[:, None, :] < costs[None, :, :]).sum(1).mean(1) / (len(costs) - 1)


def profile(costs: np.ndarray) -> np.ndarray:
    """AlgoPerf's performance profile: area under the share of tasks done within τ times the best, τ from 1 to 4."""
    to_best = costs / costs.min(0)
    return -np.clip((4 - to_best) / 3, 0, 1).mean(1)


def z_score(costs: np.ndarray) -> np.ndarray:
    logs = np.log(costs)
    return ((logs - logs.mean(0)) / logs.std(0)).mean(1)


def to_best(costs: np.ndarray) -> np.ndarray:
    return np.log(costs / costs.min(0)).mean(1)


def ours(costs: np.ndarray) -> np.ndarray:
    """Geometric mean of the ratio to a fixed reference, the first variant, by the rules of this package."""
    return np.array(
        [
            geometric_mean([ratio(Estimate(float(np.log(c / r)))).value for c, r in zip(row, costs[0], strict=True)])
            for row in costs
        ]
    )


def reversals(rule: Callable[[np.ndarray], np.ndarray], draws: int) -> float:
    """Share of draws in which adding a ninth variant reverses two of eight, over eight tasks (log-normal costs)."""
    rng = np.random.default_rng(2024)
    count = 0
    for _ in range(draws):
        costs = np.exp(rng.normal(0, 0.25, (9, 1)) + rng.normal(0, 0.5, (9, 8)))
        before, after = rule(costs[:8]), rule(costs)[:8]
        signs = [np.sign(np.round(s[:, None] - s[None, :], 12)) for s in (before, after)]
        count += bool((signs[0] * signs[1] < 0).any())
    return count / draws


@pytest.mark.parametrize(
    ("rule", "published"), [(win_rate, 0.123), (profile, 0.207), (z_score, 0.330), (to_best, 0.0)],
    ids=["win rate and Borda", "performance profile", "z-score", "ratio to best"],
)  # fmt: skip
def test_how_often_the_rules_of_others_reverse_an_order(
    rule: Callable[[np.ndarray], np.ndarray], published: float
) -> None:
    """The shares that an earlier simulation with the rivals' own code gave, within its and our noise."""
    assert reversals(rule, 1500) == pytest.approx(published, abs=0.04)


def test_our_rule_reverses_none() -> None:
    assert reversals(ours, 400) == 0.0


def test_the_arithmetic_mean_of_the_survivors_rewards_running_out_of_memory() -> None:
    """Costs 1, 16, 256 against 2, 20 and a failure: the sum over all rows is 91 against the slower one's 7.3."""
    dense, sparse = [1.0, 16.0, 256.0], [2.0, 20.0, None]
    rival = [sum(c for c in costs if c) / 3 for costs in (dense, sparse)]
    assert rival == pytest.approx([91.0, 7.33], abs=0.01)
    own = [
        capped(None if c is None else Estimate(float(np.log(c / d)))).value for c, d in zip(sparse, dense, strict=True)
    ]
    assert geometric_mean(list(np.exp(own))) == pytest.approx((2 * 1.25 * 64) ** (1 / 3))


@pytest.mark.parametrize("of_seeds", [0.0, 0.01])
def test_equal_variants_are_rarely_told_apart(of_seeds: float) -> None:
    """Six variants of one true accuracy, three seeds, 300 examples: a false order in at most 5 % of 200 draws."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(200):
        hard = rng.normal(0, 1, 300)
        correct = {
            name: [(hard + rng.normal(0, of_seeds * 3) + rng.normal(0, 1, 300) > 0).astype(np.uint8) for _ in range(3)]
            for name in "abcdef"
        }
        shares = {name: [float(c.mean()) for c in draws] for name, draws in correct.items()}

        def gap(one: str, other: str, shares: dict = shares, correct: dict = correct) -> Estimate:
            return accuracy_difference(shares[one], shares[other], 300, correct[one], correct[other])

        wrong += any(s.first > 1 or s.last < 6 for s in rank_intervals(list(correct), gap))
    assert wrong / 200 <= 0.05


def test_a_real_difference_is_found() -> None:
    """Five points apart on 2,000 shared examples with seeds half a point apart: found in most of 100 draws of two."""
    rng = np.random.default_rng(6)
    found = 0
    for _ in range(100):
        hard = rng.normal(0, 1, 2000)
        correct = [
            [(hard + better + rng.normal(0, 0.02) + rng.normal(0, 0.5, 2000) > 0).astype(np.uint8) for _ in range(3)]
            for better in (0.0, 0.15)
        ]
        shares = [[float(c.mean()) for c in draws] for draws in correct]
        gap = accuracy_difference(shares[1], shares[0], 2000, correct[1], correct[0])
        found += rank_intervals(["a", "b"], lambda one, other, gap=gap: Estimate(-gap.value, gap.noise))[0].last == 1
    assert found >= 70
