"""Who is not beaten in both, and in how many draws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.bench.score.cost import RelativeCost
from attnbench.bench.score.pareto import frontier, frontier_shares
from attnbench.bench.score.quality import SeedScores
from attnbench.bench.stats.scoring import log_ratio, log_ratios


def scores(name: str, shares: tuple[float, ...], examples: int = 1000) -> SeedScores:
    correct = tuple((np.arange(examples) < share * examples).astype(np.uint8) for share in shares)
    return SeedScores(variant=name, seeds=tuple(range(len(shares))), scores=shares, examples=examples, correct=correct)


def timing(name: str, factor: float, wobble: float = 0.0, rounds: int = 12) -> RelativeCost:
    reference = [1.0] * rounds
    own = [factor * (1 + wobble * (-1) ** at) for at in range(rounds)]
    return RelativeCost(
        variant=name,
        row=0,
        cost=log_ratio(own, reference),
        logs=log_ratios(own, reference),
        seconds=tuple(own),
        block="b",
    )


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_frontier_is_what_brute_force_says(points: dict[str, tuple[int, int]]) -> None:
    quality, cost = ({n: float(p[i]) for n, p in points.items()} for i in (0, 1))
    expected = set()
    for n, (q, c) in points.items():
        beaten = [(q2, c2) for q2, c2 in points.values() if (q2, c2) != (q, c) and q2 >= q and c2 <= c]
        expected |= set() if beaten else {n}
    assert frontier(quality, cost) == expected


def test_clear_cases_are_in_all_draws_or_none() -> None:
    shares = frontier_shares(
        {n: scores(n, (q,) * 3) for n, q in (("fast", 0.6), ("good", 0.8), ("beaten", 0.5))},
        {n: timing(n, c, 0.01) for n, c in (("fast", 0.5), ("good", 2.0), ("beaten", 3.0))},
    )
    assert shares == {"fast": 1.0, "good": 1.0, "beaten": 0.0}


def test_a_coin_toss_is_in_about_half_of_the_draws() -> None:
    rng = np.random.default_rng(1)
    shares = (0.60, 0.62, 0.58)
    mixed = {n: scores(n, shares) for n in ("a", "b")}
    for n in mixed:
        rolled = tuple(rng.permutation(c) for c in mixed[n].correct or ())
        mixed[n] = SeedScores(variant=n, seeds=(0, 1, 2), scores=shares, examples=1000, correct=rolled)
    # b is the slower in all draws, so it is on the frontier where it is the more accurate
    found = frontier_shares(mixed, {"a": timing("a", 1.0, 0.001), "b": timing("b", 1.1, 0.001)})
    assert found["a"] == 1.0 and found["b"] == pytest.approx(0.5, abs=0.12)


def test_draws_are_the_same_every_time_and_pairs_stay_paired() -> None:
    wild = {n: scores(n, s) for n, s in (("a", (0.5, 0.6, 0.7)), ("b", (0.51, 0.61, 0.71)))}
    costs = {n: timing(n, c, 0.3) for n, c in (("a", 1.0), ("b", 1.01))}
    found = frontier_shares(wild, costs)
    # b is better on every seed and slower in every round, however much seeds and rounds differ
    assert found == {"a": 1.0, "b": 1.0} == frontier_shares(wild, costs)


def test_the_last_bits_of_a_logarithm_change_no_share() -> None:
    """Two variants that tie in quality in every draw and in cost up to rounding, as processors differ in it."""
    alike = {n: scores(n, (0.5, 0.6, 0.7)) for n in ("a", "b", "c")}
    costs = {n: timing(n, 1.5, 0.3) for n in ("a", "b", "c")}
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        logs = costs[name].logs * (1 + rng.choice([-2e-16, 0, 2e-16], len(costs[name].logs)))
        costs[name] = replace(costs[name], logs=logs)
    assert frontier_shares(alike, costs) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_who_cannot_be_placed_is_left_out() -> None:
    placed = scores("a", (0.5,) * 3)
    assert frontier_shares({"a": placed}, {"a": timing("a", 1.0)}) == {}
    lacking = SeedScores(variant="b", missing_reason="fewer than 3 seeds")
    assert frontier_shares({"a": placed, "b": lacking}, {n: timing(n, 1.0) for n in "ab"}) == {}


def test_without_predictions_the_test_set_is_noise_all_the_same() -> None:
    bare = {
        n: SeedScores(variant=n, seeds=(0, 1, 2), scores=(s,) * 3, examples=200) for n, s in (("a", 0.6), ("b", 0.61))
    }
    found = frontier_shares(bare, {"a": timing("a", 1.0), "b": timing("b", 2.0)})
    assert 0.3 < found["b"] < 0.9
