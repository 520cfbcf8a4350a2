"""Contrasts: moderated and corrected by the declared variants, and by nobody else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from moderated_t import fitted, half_width_of_seeds
from scipy import stats

from attnbench.bench.core.metrics import METRICS
from attnbench.bench.plan.suite_file import read_suite
from attnbench.bench.score.contrasts import COMPARISON_SETS, Contrast, Contrasts, mean_contrast
from attnbench.bench.score.quality import SeedScores, is_unlearned
from attnbench.bench.stats.intervals import Share
from attnbench.bench.stats.moderation import moderated_variances, noise_of_difference, prior_of

BLEU = METRICS["bleu"]
COMPARISON_SET = COMPARISON_SETS["accuracy"]


def board_of(found: dict[str, SeedScores]) -> Contrasts:
    """Six declared variants, whatever the metric."""
    return Contrasts(found, COMPARISON_SET)


def scores(values: dict[str, list[float]], **changes: object) -> dict[str, SeedScores]:
    """Scores without statistics of examples, so that all of their noise is that of seeds."""
    return {
        name: SeedScores(variant=name, metric=BLEU, seeds=tuple(range(len(own))), scores=tuple(own), **changes)
        for name, own in values.items()
    }


def drawn(count: int = 6, seeds: int = 3, seed: int = 0, deviation: float = 1.0) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    names = [*COMPARISON_SET, *(f"other{at}" for at in range(max(count - 6, 0)))][:count]
    order = rng.normal(0, 1, seeds)
    return {name: list(30 + at + order + rng.normal(0, deviation, seeds)) for at, name in enumerate(names)}


@pytest.mark.parametrize(("count", "seeds"), [(3, 3), (6, 3), (6, 5), (8, 4)])
def test_the_half_width_is_that_of_the_paper_written_anew(count: int, seeds: int) -> None:
    for seed in range(12):
        values = drawn(count, seeds, seed)
        found = board_of(scores(values))
        for one, other in (("softmax", "entmax15"), ("fastformer", "softmax"), (list(values)[-1], "softmax")):
            if one == other:
                continue
            contrast = found.between(one, other)
            expected = half_width_of_seeds(values, one, other, COMPARISON_SET, contrast.pairs)
            if not contrast.own:
                assert contrast.interval.high - contrast.advantage.value == pytest.approx(expected, rel=1e-6), seed


def test_the_prior_is_the_one_of_limma() -> None:
    """d0 by a root finder on scipy's trigamma; where variances differ less than chance would, it is infinite."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        variances = rng.chisquare(4, 12) / 4 * np.exp(rng.normal(0, rng.random() * 1.5, 12))
        found = prior_of(variances, np.ones(12, dtype=bool), 4)
        _, expected = fitted(variances.tolist(), 4)
        assert float(found.freedom) == pytest.approx(expected, rel=1e-6), seed


def test_one_board_at_a_time_is_as_thousands_at_once() -> None:
    boards = [drawn(6, 3, seed, deviation=3.0) for seed in range(40)]
    batch = moderated_variances(np.array([[b[name] for name in sorted(b)] for b in boards]), np.ones(6, dtype=bool))
    for at, board in enumerate(boards):
        alone = moderated_variances(np.array([board[name] for name in sorted(board)]), np.ones(6, dtype=bool))
        assert batch.variances[at] == pytest.approx(alone.variances)
        assert batch.freedom[at] == pytest.approx(alone.freedom)


def test_the_effect_that_a_seed_has_on_all_is_no_noise_of_a_difference() -> None:
    values = drawn(6, 3)
    moved = {name: [v + shift for v, shift in zip(own, (0, 40, -40), strict=True)] for name, own in values.items()}
    one, two = (board_of(scores(each)).between("softmax", "rela") for each in (values, moved))
    assert one.advantage.half_width() == pytest.approx(two.advantage.half_width())


def test_two_variants_have_their_own_variances() -> None:
    values = {name: own for name, own in drawn(6, 3).items() if name in ("softmax", "rela")}
    contrast = board_of(scores(values)).between("rela", "softmax")
    variances = [np.var(own, ddof=1) for own in values.values()]
    freedom = sum(variances) ** 2 / sum(v * v / 2 for v in variances)
    expected = math.sqrt(sum(variances) / 3) * stats.t.ppf(1 - 0.025 / 5, freedom)
    assert not contrast.is_moderated
    assert contrast.interval.high - contrast.advantage.value == pytest.approx(expected)


def test_a_variant_that_is_not_declared_changes_no_other_interval() -> None:
    values = drawn(6, 3)
    before = board_of(scores(values))
    after = board_of(scores(values | {"mine": [0.0, 99.0, 5.0], "theirs": [1.0, 1.0, 1.0]}))
    for one in values:
        for other in values:
            if one != other:
                assert before.between(one, other).interval == after.between(one, other).interval
        assert before.level_of(one) == after.level_of(one)
    alone = board_of(scores(values | {"mine": [0.0, 99.0, 5.0]})).between("mine", "softmax")
    assert alone.interval == after.between("mine", "softmax").interval and alone.pairs == 11


def test_a_fourth_seed_of_one_variant_changes_no_pair_of_others_and_none_of_its_own() -> None:
    values = drawn(6, 3)
    longer = values | {"softmax": [*values["softmax"], 0.0]}
    before, after = board_of(scores(values)), board_of(scores(longer))
    for one, other in (("rela", "linear"), ("rela", "softmax"), ("softmax", "local")):
        assert before.between(one, other).interval == after.between(one, other).interval


def test_more_seeds_of_a_loser_change_no_pair_of_others_and_none_of_its_own() -> None:
    """Eight added seeds at which it failed: the seeds that a pair has in common decide all of it."""
    values = drawn(6, 12)
    before = board_of(scores(values))
    found = scores(values | {"local": [*values["local"], *[1.0] * 8]})
    found["local"] = replace(found["local"], learned_by_seed=(True,) * 12 + (False,) * 8)
    after = board_of(found)
    for one, other in (("rela", "linear"), ("rela", "softmax"), ("local", "softmax"), ("local", "rela")):
        assert before.between(one, other).interval == after.between(one, other).interval
        assert before.between(one, other).shares == after.between(one, other).shares
    assert before.level_of("rela") == after.level_of("rela")


def test_a_variant_that_learned_at_some_seeds_only_is_compared_at_these_and_leaves_the_pool() -> None:
    values = drawn(6, 6) | {"local": [10.0, 30.0, 10.0, 31.0, 29.5, 31.0]}
    found = scores(values)
    found["local"] = replace(found["local"], learned_by_seed=(False, True, False, True, True, True))
    contrasts = board_of(found)
    contrast = contrasts.between("local", "softmax")
    assert contrast.seeds == (1, 3, 4, 5) and contrast.shares == (Share(4, 6), Share(6, 6)) and contrast.failures
    ours, theirs = ([values[name][at] for at in (1, 3, 4, 5)] for name in ("local", "softmax"))
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    assert contrast.advantage.value == pytest.approx(np.mean(ours) - np.mean(theirs))
    # half of the chance of the pair to err, and five comparisons with softmax
    assert contrast.interval.low == pytest.approx(test.confidence_interval(1 - 0.05 / 5 / 2).low)
    assert contrasts.level_of("local").low == pytest.approx(
        stats.t.interval(0.95, 3, np.mean(ours), stats.sem(ours))[0]
    )
    rest = {name: own for name, own in values.items() if name != "local"}
    half = half_width_of_seeds(rest, "rela", "linear", COMPARISON_SET, 15)
    assert contrasts.between("rela", "linear").advantage.half_width(1 - 0.05 / 15) == pytest.approx(half)
    assert not contrasts.between("rela", "linear").failures and not contrasts.between("rela", "linear").own


def test_a_variant_that_learned_nowhere_is_of_one_mode() -> None:
    """It did not learn in part: its mean is over all of its seeds, and nothing failed beside others that did not."""
    found = scores(drawn(6, 3))
    found["local"] = replace(found["local"], learned_by_seed=(False,) * 3)
    contrast = board_of(found).between("local", "softmax")
    assert not found["local"].learned_in_part and contrast.seeds == (0, 1, 2) and not contrast.failures
    assert contrast.shares == (Share(0, 3), Share(3, 3))


def two_parts(ours: list[float], theirs: list[float], bar: float = 0.5) -> Contrast:
    """`rela` against `softmax`, alone on a board: those above the bar learned."""
    found = {
        name: SeedScores(
            variant=name, seeds=tuple(range(len(own))), scores=tuple(own), examples=100_000,
            learned_by_seed=tuple(score > bar for score in own),
        )
        for name, own in (("rela", ours), ("softmax", theirs))
    }  # fmt: skip
    return Contrasts(found, ["softmax", "rela"]).between("rela", "softmax")


NEAR = [0.900, 0.902, 0.901, 0.899, 0.900, 0.901, 0.902, 0.898, 0.900, 0.901]


def test_an_order_needs_one_part_and_nothing_that_says_the_opposite() -> None:
    better = [score + 0.05 for score in NEAR]
    # the mean of those that learned alone
    assert two_parts(better[:6], NEAR[:6]).direction(1) == 1
    assert two_parts([*better[:5], 0.1], [*NEAR[:5], 0.05]).direction(1) == 1
    # the share alone: ten of ten against two of ten, and means that do not differ
    failing = [*NEAR[:3], *[0.1] * 7]
    assert two_parts(NEAR, failing).direction(1) == 1 and two_parts(failing, NEAR).direction(1) == -1
    # better where it learned, and fails too often for the mean over all seeds
    assert two_parts([*better[:4], 0.1, 0.1], NEAR[:6]).direction(1) == 0
    # one part against the other
    assert two_parts([*better[:3], *[0.1] * 7], NEAR).direction(1) == 0


def test_a_share_that_no_six_seeds_show_proves_nothing() -> None:
    contrast = two_parts(NEAR[:6], [NEAR[0], *[0.1] * 5])
    assert contrast.shares[0].p_value(contrast.shares[1]) == pytest.approx(0.01515, abs=1e-5)
    # a mean of one seed shows nothing, and 6 of 6 against 1 of 6 is proven for one pair, or for three
    assert not contrast.has_enough_seeds and contrast.direction(1) == 1 and contrast.direction(6) == 0


def test_where_one_learned_nowhere_only_the_shares_decide() -> None:
    """A few successes beside failures alone: their means differ for certain, and the two may be equal."""
    successes, failures = [0.260, 0.262, 0.258, *[0.02] * 9], [0.020, 0.021, 0.019] * 4
    contrast = two_parts(successes, failures, bar=0.2)
    assert contrast.shares == (Share(3, 12), Share(0, 12)) and contrast.by_shares
    assert [contrast.direction(pairs) for pairs in (1, 10, 66)] == [0, 0, 0]
    assert contrast.verdict(0.01) == "undecided" and contrast.interval.low == -1 and contrast.interval.high == 1
    assert contrast.advantage.value == pytest.approx(np.mean(successes) - np.mean(failures))
    # twelve of twelve against none is no luck; three of three may be
    solved = two_parts(NEAR[:6], failures[:6])
    assert solved.direction(55) == 1 and solved.verdict(0.01) == "better"
    assert two_parts(failures[:6], NEAR[:6]).is_behind
    assert two_parts(NEAR[:3], failures[:3]).direction(1) == 0
    # a task on which that holds for the two leaves only the shares of all tasks
    both = mean_contrast([two_parts([*NEAR[:6]], NEAR[6:] + NEAR[:2]), solved])
    assert both.by_shares and both.shares == (Share(12, 12), Share(6, 12)) and not both.compares_means


def test_where_neither_learned_all_seeds_count_from_six_on() -> None:
    """Three seeds of two modes below the bar look certain, and are not; no variance of others is lent."""
    low, high = [0.020, 0.021, 0.019, 0.022, 0.020, 0.018], [0.260, 0.262, 0.258, 0.261, 0.259, 0.260]
    few, more = two_parts(high[:3], low[:3]), two_parts(high, low)
    assert not few.is_certain and few.direction(1) == 0 and few.verdict(0.01) == "undecided" and few.interval.low > 0
    assert more.direction(55) == 1 and not more.is_moderated
    error = math.sqrt((np.var(high, ddof=1) + np.var(low, ddof=1)) / 6)
    assert more.advantage.noise[0].error == pytest.approx(error)
    assert few.least_seeds == 6 and few.seeds_needed() == 6


def test_seeds_in_doubt_are_compared_with_those_that_seem_to_have_failed() -> None:
    """Where nobody knows the ceiling, the bar beside the own best seed chooses no seeds."""

    def found(count: int) -> Contrast:
        scores = {
            "rela": SeedScores(
                variant="rela", seeds=tuple(range(count)), scores=(0.20, *[0.66, 0.67] * 6)[:count], examples=100_000,
                learned_by_seed=(False, *[True] * (count - 1)), in_doubt=True,
            ),
            "softmax": SeedScores(
                variant="softmax", seeds=tuple(range(count)), scores=(0.91, 0.92) * (count // 2), examples=100_000
            ),
        }  # fmt: skip
        return Contrasts(scores, ["softmax", "rela"]).between("rela", "softmax")

    assert found(4).seeds == (0, 1, 2, 3) and found(4).verdict(0.01) == "undecided"
    assert found(12).direction(1) == -1 and found(12).advantage.value == found(12).of_all


def test_nobody_is_no_worse_who_failed_more_often() -> None:
    assert two_parts(NEAR[:6], NEAR[:6]).verdict(0.01) == "within margin"
    assert two_parts([*NEAR[:5], 0.1], [*NEAR[:5], 0.1]).verdict(0.01) == "within margin"
    assert two_parts([*NEAR[:5], 0.1], NEAR[:6]).verdict(0.01) == "undecided"


def test_no_interval_leaves_what_is_possible() -> None:
    """Seeds that scatter from 0.05 to 0.95 beside one at 0.9: nothing is farther above it than what is left to 1."""
    contrast = two_parts([0.95, 0.05, 0.5], [0.9, 0.91, 0.89], bar=0.0)
    raw = contrast.advantage.interval(contrast.level)
    level = stats.t.interval(0.95, 2, 0.9, 0.01 / math.sqrt(3))
    assert raw.low < -1 and raw.high > 0.5
    assert contrast.interval.high == pytest.approx(1 - level[0], rel=1e-2)
    assert contrast.interval.low == pytest.approx(-level[1], rel=1e-2)
    assert contrast.minimal_detectable_effect() == max(map(abs, contrast.possible)) < 1


def test_half_of_the_seeds_is_not_more_than_half() -> None:
    four = SeedScores(
        variant="softmax", seeds=(0, 1, 2, 3), scores=(0.5,) * 4, above_by_seed=(True, True, False, False)
    )
    assert not four.has_learned and is_unlearned(four)
    assert replace(four, above_by_seed=(True, True, True, False)).has_learned


def test_seeds_far_outside_the_board_are_seen_without_any_mark() -> None:
    values = drawn(6, 3, deviation=0.1) | {"local": [10.0, 30.0, 10.0]}
    assert board_of(scores(values)).between("local", "softmax").own == ("local",)


def test_nothing_is_within_the_margin_of_a_reference_that_did_not_learn() -> None:
    found = scores(drawn(6, 3, deviation=0.01))
    near = replace(found["softmax"], variant="rela")
    assert board_of(found | {"rela": near}).between("rela", "softmax").verdict(0.5) == "within margin"
    unlearned = replace(found["softmax"], above_by_seed=(False, True, False))
    contrast = board_of(found | {"rela": near, "softmax": unlearned}).between("rela", "softmax")
    assert contrast.verdict(20.0) == "undecided" and not contrast.other_learned


def test_the_comparison_set_is_that_of_the_suite_lra() -> None:
    assert set(COMPARISON_SET) == set(read_suite("lra").declaration[2])


def test_seeds_needed_and_the_minimal_effect_agree() -> None:
    contrast = board_of(scores(drawn(6, 3))).between("entmax15", "softmax")
    effect = contrast.minimal_detectable_effect()
    assert contrast.seeds_needed(effect * 1.001) == 3 and contrast.seeds_needed(effect * 0.7) > 3
    assert contrast.seeds_needed(0.0) is None


def test_the_minimal_effect_is_found_by_four_of_five_simulated_boards() -> None:
    rng = np.random.default_rng(5)
    noise = moderated_variances(np.array(list(drawn(6, 5).values())), np.ones(6, dtype=bool))
    assert noise.pooled_freedom == 20
    effects, found = [], 0
    for _ in range(400):
        board = scores({name: list(rng.normal(30, 1, 5)) for name in COMPARISON_SET})
        effects.append(board_of(board).between("rela", "softmax").minimal_detectable_effect())
    typical = float(np.mean(effects))
    for _ in range(400):
        values = {name: list(rng.normal(30 + typical * (name == "rela"), 1, 5)) for name in COMPARISON_SET}
        found += board_of(scores(values)).between("rela", "softmax").is_separated
    assert found / 400 == pytest.approx(0.8, abs=0.06)


def test_a_mean_over_tasks_has_the_noise_of_each() -> None:
    first, second = (board_of(scores(drawn(6, 3, seed))).between("rela", "softmax") for seed in (1, 2))
    both = mean_contrast([first, second])
    assert both.advantage.value == pytest.approx((first.advantage.value + second.advantage.value) / 2)
    sources = [each.advantage.noise[0] for each in (first, second)]
    error = math.hypot(*(source.error for source in sources)) / 2
    freedom = error**4 / sum((source.error / 2) ** 4 / source.freedom for source in sources)
    assert both.advantage.half_width(both.level) == pytest.approx(error * stats.t.ppf(1 - 0.025 / 5, freedom))
    assert both.noise_of(3) == both.advantage.noise and both.pairs == 5


def test_trainings_are_counted_over_all_tasks() -> None:
    values = [two_parts([*NEAR[:5], 0.1], NEAR[:6]), two_parts([*NEAR[:4], 0.1, 0.1], NEAR[:6])]
    both = mean_contrast(values)
    assert both.shares == (Share(9, 12), Share(12, 12)) and both.failures and both.tasks == 2
    assert both.of_all == pytest.approx((values[0].of_all + values[1].of_all) / 2)


def test_the_noise_of_two_equal_means_has_all_their_degrees_of_freedom() -> None:
    values = [np.array(v) for v in (2.0, 2.0, 5.0, 5.0, np.inf)]
    error, freedom = noise_of_difference(*values, 4)
    assert (float(error), float(freedom)) == (1.0, 10.0)


def test_a_board_without_a_suite_has_the_comparison_set_of_its_metric() -> None:
    values = drawn(6, 3)
    assert Contrasts(scores(values)).declared == {"softmax", "entmax15", "rela", "sparsemax"}
    assert Contrasts(scores(values)).pairs("rela", "softmax") == 6
    assert Contrasts({}).declared == set(COMPARISON_SET)
    # a metric of someone else's has the first of them
    own = replace(BLEU, name="mine")
    other = {name: replace(one, metric=own) for name, one in scores(values).items()}
    assert Contrasts(other).declared == set(COMPARISON_SET)
