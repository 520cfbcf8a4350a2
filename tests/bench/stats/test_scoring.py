"""The rules of scoring, on numbers that can be checked by hand."""

import math

import numpy as np
import pytest

from attnbench.bench.core.metrics import Interval
from attnbench.bench.stats import format as wording
from attnbench.bench.stats import scoring as score
from attnbench.bench.stats.intervals import Estimate, NoiseSource, quantile
from attnbench.bench.stats.ranking import rank_intervals, ranked_by
from attnbench.bench.stats.scoring import (
    accuracy,
    accuracy_difference,
    capped,
    geometric_mean,
    log_ratio,
    log_ratios,
    noise_floor,
    ratio,
    verdict,
)


def test_ratio_of_three_rounds_is_a_t_interval_of_the_logarithms() -> None:
    # log2 of the ratios: 0, 1, 2; mean 1, standard error 1/√3, t(2) = 4.303
    found = ratio(log_ratio([1.0, 2.0, 4.0], [1.0, 1.0, 1.0]))
    assert found.value == pytest.approx(2.0)
    assert found.high == pytest.approx(2 ** (1 + 4.3027 / 3**0.5), rel=1e-3)
    assert found.low == pytest.approx(2 ** (1 - 4.3027 / 3**0.5), rel=1e-3)


def test_ratios_are_of_the_same_round() -> None:
    # a drift that hits both alike leaves no trace
    drift = np.linspace(1, 5, 8)
    found = log_ratio(list(2 * drift), list(drift))
    assert found.value == pytest.approx(math.log(2)) and found.half_width() == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="same rounds"):
        log_ratio([1.0, 2.0], [1.0])


def test_many_rounds_count_as_ten_batches() -> None:
    found = log_ratio(list(np.exp(np.arange(40.0) % 2)), [1.0] * 40)
    # every batch of four holds two of each order: the alternation is no noise
    assert found.value == pytest.approx(0.5) and found.noise[0].freedom == 9
    assert found.half_width() == pytest.approx(0, abs=1e-12)


def test_rounds_that_drift_slowly_do_not_fake_precision() -> None:
    """Intervals over autocorrelated rounds cover the truth far oftener in batches than round by round."""
    rng = np.random.default_rng(3)
    held = {"batches": 0, "rounds": 0}
    for _ in range(400):
        noise = rng.normal(0, 1, 120)
        for at in range(1, 120):
            noise[at] += 0.6 * noise[at - 1]
        held["batches"] += (
            abs(log_ratio(list(np.exp(noise)), [1.0] * 120).value)
            <= log_ratio(list(np.exp(noise)), [1.0] * 120).half_width()
        )
        held["rounds"] += abs(noise.mean()) <= quantile(0.95, 119) * noise.std(ddof=1) / 120**0.5
    assert held["batches"] / 400 > 0.90 > 0.80 > held["rounds"] / 400


def test_rounds_are_batched_from_two_a_batch_on() -> None:
    assert [len(log_ratios([1.0] * rounds, [1.0] * rounds)) for rounds in (19, 20, 25)] == [19, 10, 10]


def test_faster_here_and_slower_there_is_as_fast() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


def test_no_cost_exceeds_the_cap_and_failures_are_at_it() -> None:
    assert ratio(Estimate(math.log(1e6), (NoiseSource(1.0),))) == Interval(64.0, 64.0, 64.0)
    assert capped(None) == capped(Estimate(math.log(65.0), (NoiseSource(2.0),))) == Estimate(math.log(64.0))
    slower = Estimate(math.log(63.0), (NoiseSource(0.1),))
    assert capped(slower) == slower


def test_noise_of_the_test_set_does_not_shrink_with_seeds() -> None:
    assert accuracy([0.6] * 3, 1000) == accuracy([0.6], 1000)
    assert 0.5 * (accuracy([0.6] * 3, 1000).high - accuracy([0.6] * 3, 1000).low) == pytest.approx(0.0303, abs=1e-4)


def test_seeds_that_disagree_widen_the_accuracy() -> None:
    # standard deviation 0.02: t half-width 4.303 × 0.02 / √3 = 0.0497, with 0.0303 of the test set: 0.0582
    found = accuracy([0.58, 0.60, 0.62], 1000)
    assert found.high - found.value == pytest.approx(math.hypot(0.04968, 0.0303), abs=2e-4)


def test_an_accuracy_is_never_certain() -> None:
    assert accuracy([1.0] * 3, 50).low < 0.95
    assert accuracy([1.0] * 3, 50, [np.ones(50, dtype=np.uint8)] * 3).low < 0.95


def test_seeds_that_err_on_other_examples_share_out_the_noise_of_the_test_set() -> None:
    rng = np.random.default_rng(0)
    same = [(rng.random(400) < 0.6).astype(np.uint8)] * 3
    share = float(np.mean(same[0]))
    others = [np.roll(same[0], 131 * k) for k in range(3)]
    widths = [accuracy([share] * 3, 400, c).high - share for c in (None, same, others)]
    assert widths[0] == pytest.approx(widths[1]) and widths[2] < 0.75 * widths[0]


def test_gap_pairs_examples_where_predictions_are_kept() -> None:
    ours = np.array([1, 1, 1, 0, 1, 0, 1, 1, 0, 1] * 100, dtype=np.uint8)
    theirs = ours.copy()
    theirs[:20] = 0
    paired = accuracy_difference([float(ours.mean())] * 3, [float(theirs.mean())] * 3, 1000, [ours] * 3, [theirs] * 3)
    apart = accuracy_difference([float(ours.mean())] * 3, [float(theirs.mean())] * 3, 1000)
    # 14 of 1,000 differ: standard error √(0.014 × 0.986 / 1000), against √(2 × 0.7 × 0.3 / 1000) apart
    assert paired.value == apart.value == pytest.approx(0.014)
    assert paired.half_width() == pytest.approx(1.96 * (0.014 * 0.986 / 1000) ** 0.5, rel=1e-3)
    assert apart.half_width() == pytest.approx(1.96 * (0.7 * 0.3 / 1000 + 0.686 * 0.314 / 1000) ** 0.5, rel=1e-3)


def test_gap_of_identical_predictions_is_not_certain() -> None:
    same = [np.ones(100, dtype=np.uint8)] * 3
    assert accuracy_difference([1.0] * 3, [1.0] * 3, 100, same, same).half_width() == pytest.approx(0.0196, abs=1e-4)


def test_the_luck_of_a_training_is_counted_among_the_seeds_and_not_among_the_examples_too() -> None:
    """Seeds that err on different examples share nothing: all of the noise is the seeds'."""
    rng = np.random.default_rng(3)
    examples = 20_000
    difficult = rng.random(examples) < 0.5
    shared = [difficult.astype(np.uint8)] * 3
    lucky = [(rng.random(examples) < 0.5).astype(np.uint8) for _ in range(3)]
    other = [np.ones(examples, dtype=np.uint8)] * 3
    shares = [[float(c.mean()) for c in each] for each in (shared, lucky, other)]
    of_shared = accuracy_difference(shares[0], shares[2], examples, shared, other).noise[1].error
    of_lucky = accuracy_difference(shares[1], shares[2], examples, lucky, other).noise[1].error
    assert of_shared == pytest.approx((0.25 / examples) ** 0.5, rel=0.01)
    # by the examples of the mean alone it would be 0.58 of the other
    assert of_lucky < 0.15 * of_shared
    assert accuracy(shares[1], examples, lucky, NoiseSource(1e-9)).high - 0.5 < 0.2 * 1.96 * of_shared


def test_intervals_of_gaps_cover_what_they_promise() -> None:
    """Two variants, three seeds, one test set of 400 of which they err on different examples: 1,000 draws."""
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(1000):
        hard = rng.normal(0, 1, 400)
        draws = []
        for own, better in ((rng.normal(0, 0.5, 400), 0.0), (rng.normal(0, 0.5, 400), 0.2)):
            level = better + hard + own
            draws.append(
                [(level + rng.normal(0, 0.1) + rng.normal(0, 0.7, 400) > 0).astype(np.uint8) for _ in range(3)]
            )
        gap = accuracy_difference(*([float(c.mean()) for c in d] for d in draws), 400, *draws).interval()
        held += gap.low <= TRUE_GAP <= gap.high
    assert held / 1000 >= 0.95


# P(N(m, 1 + 0.25 + 0.01 + 0.49) > 0) at m = 0 less that at m = 0.2
TRUE_GAP = 0.5 - 0.5 * math.erfc(-0.2 / math.sqrt(1.75) / math.sqrt(2))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.1, 0.9, "better"), (-0.9, -0.1, "within margin"), (-0.9, 1.4, "within margin"), (-1.1, 0.5, "undecided"),
     (-3.0, -1.1, "worse")],
)  # fmt: skip
def test_verdict_by_margin(low: float, high: float, words: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high), margin=1.0) == words


def test_noise_floor_is_the_worst_that_a_null_control_may_hide() -> None:
    near, far = Estimate(0.001, (NoiseSource(0.001),)), Estimate(-0.02, (NoiseSource(0.01),))
    assert noise_floor([near, far]) == pytest.approx(0.02 + 0.0196, abs=1e-4)
    assert noise_floor([]) == 0.0


def test_ties_are_told_by_pairs_and_follow_the_alphabet() -> None:
    points = {"a": 3.0, "c": 9.0, "b": 3.1, "d": 0.0}
    found = rank_intervals(list(points), lambda x, y: Estimate(points[x] - points[y], (NoiseSource(0.2),)))
    assert [(s.name, str(s)) for s in found] == [("c", "1"), ("a", "2-3"), ("b", "2-3"), ("d", "4")]


def test_ties_need_not_be_transitive() -> None:
    points = {"a": 2.0, "b": 1.0, "c": 0.0}
    found = rank_intervals(list(points), lambda x, y: Estimate(points[x] - points[y], (NoiseSource(0.5),)))
    assert [(s.name, str(s)) for s in found] == [("a", "1-2"), ("b", "1-3"), ("c", "2-3")]


def test_pairs_are_corrected_for_their_number() -> None:
    # z = 2.2 is p = 0.028: enough for one pair, not for one of three
    gap = {("a", "b"): 2.2, ("a", "c"): 0.0, ("b", "c"): 0.0}
    assert str(rank_intervals(["a", "b"], lambda x, y: Estimate(gap[x, y], (NoiseSource(1.0),)))[0]) == "1"
    assert [str(s) for s in rank_intervals(["a", "b", "c"], lambda x, y: Estimate(gap[x, y], (NoiseSource(1.0),)))] == [
        "1-3"
    ] * 3


def test_two_proven_steps_prove_the_whole() -> None:
    gap = {("a", "b"): (1.0, 0.1), ("b", "c"): (1.0, 0.1), ("a", "c"): (2.0, 5.0)}
    found = rank_intervals(["a", "b", "c"], lambda x, y: Estimate(gap[x, y][0], (NoiseSource(gap[x, y][1]),)))
    assert [str(s) for s in found] == ["1", "2", "3"]


def test_nothing_under_the_noise_floor_is_proven() -> None:
    found = rank_intervals(["a", "b"], lambda x, y: Estimate(0.01, (NoiseSource(0.0001),)), floor=0.02)
    assert [str(s) for s in found] == ["1-2", "1-2"]


def test_step_down_would_let_a_worse_variant_win_a_place() -> None:
    """Why the correction is per pair: under Holm's, `v` catches up with `u` by falling back to `w`."""

    def places_under_holm(v: float) -> str:
        points = {"u": 2.0, "v": v, "w": -0.115}
        error = {("u", "v"): 1.0, ("u", "w"): 0.1, ("v", "w"): 0.05}
        p = {
            pair: Estimate(points[pair[0]] - points[pair[1]], (NoiseSource(e),)).p_value() for pair, e in error.items()
        }
        proven = set()
        for at, pair in enumerate(sorted(p, key=p.__getitem__)):
            if p[pair] * (3 - at) >= 0.05:
                break
            proven.add(pair)
        return f"{1 + (('u', 'v') in proven)}-{3 - (('v', 'w') in proven)}"

    assert places_under_holm(0.0) == "2-2"
    assert places_under_holm(-0.1) == "1-3"


def test_a_difference_of_shares_has_the_error_of_their_differences_over_examples() -> None:
    draw = np.random.default_rng(0)
    ours, theirs = draw.integers(0, 5, (2, 400)) / 4
    found = accuracy_difference([ours.mean()], [theirs.mean()], 400, [ours], [theirs])
    [noise] = found.noise
    assert noise.error == pytest.approx((ours - theirs).std(ddof=1) / math.sqrt(400), rel=1e-9)


@pytest.mark.parametrize(
    ("proven", "expected"),
    [
        # a before b, b before c, c before a: none of these counts, and whoever is behind one of them is behind all
        ({"ab": 1, "ac": -1, "bc": 1}, {"a": "1-4", "b": "1-4", "c": "1-4", "d": "1-4"}),
        ({"ab": 1, "ac": -1, "bc": 1, "ad": 1}, {"a": "1-3", "b": "1-3", "c": "1-3", "d": "4"}),
        ({"ab": 1, "bc": 1}, {"a": "1-2", "b": "2-3", "c": "3-4", "d": "1-4"}),
    ],
)
def test_a_cycle_of_proven_orders_is_no_order(proven: dict[str, int], expected: dict[str, str]) -> None:
    found = ranked_by(["a", "b", "c", "d"], lambda one, other: proven.get(one + other, 0))
    assert {each.name: str(each) for each in found} == expected


def test_a_loss_of_just_the_margin_is_not_proven_to_be_larger() -> None:
    # "worse" says that the true loss is more than the margin; an interval that ends there does not say so
    assert score.verdict(Interval(-2.0, -3.0, -1.0), margin=1.0) == "undecided"
    assert score.verdict(Interval(-2.0, -3.0, -1.001), margin=1.0) == "worse"


@pytest.mark.parametrize(
    ("share", "text"),
    [(1e-6, "< 0.1 %"), (0.0004, "< 0.1 %"), (0.0006, "0.1 %"), (0.004, "0.4 %"), (0.9996, "> 99.9 %"), (1.0, "100 %")],
)
def test_a_share_that_is_neither_nothing_nor_all_is_not_rounded_to_either(share: float, text: str) -> None:
    assert wording.percent(share) == text
