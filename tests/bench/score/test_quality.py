"""The advantage of one variant over another is the mean difference on common seeds, with the noise of its sources."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from seeds import seed

from attnbench.bench.core.metrics import METRICS
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.quality import SeedScores, scores_by_variant
from attnbench.bench.store.table import table_of

NAMES = ("linear", "rela", "softmax", "twin")


def scores(seeds: int, kept: bool, examples: int = 200) -> dict[str, SeedScores]:
    rng = np.random.default_rng(seeds)
    found = {}
    for name in NAMES:
        right = tuple((rng.random(examples) < 0.6).astype(np.uint8) for _ in range(seeds))
        found[name] = SeedScores(
            variant=name, seeds=tuple(range(seeds)), scores=tuple(float(r.mean()) for r in right), examples=examples,
            correct=right if kept else None,
        )  # fmt: skip
    # one that is right where another is, at every seed
    found["twin"] = replace(found["softmax"], variant="twin")
    return found


def assert_pairs(found: dict[str, SeedScores], paired: bool) -> None:
    """The advantage of every pair against the formulas, seed by seed and example by example."""
    for one, other in permutations(NAMES, 2):
        ours, theirs = found[one], found[other]
        seeds = sorted(set(ours.seeds) & set(theirs.seeds))
        places = [(ours.seeds.index(seed), theirs.seeds.index(seed)) for seed in seeds]
        differences = np.array([ours.scores[i] - theirs.scores[j] for i, j in places])
        if paired and ours.correct is not None and theirs.correct is not None:
            by_seed = np.array([ours.correct[i].astype(float) - theirs.correct[j] for i, j in places])
            count, of_mean = len(seeds), by_seed.mean(axis=0).var()
            # what all seeds share of the variance over examples; the rest moves seeds apart, and is counted there
            shared = (count * of_mean - by_seed.var(axis=1).mean()) / (count - 1) if count > 1 else of_mean
            test = math.sqrt(max(shared, 0) / 199)
        else:
            p, q = (np.mean([t.scores[at[k]] for at in places]) for k, t in enumerate((ours, theirs)))
            test = math.sqrt((p * (1 - p) + q * (1 - q)) / 200)
        advantage = ours.advantage_over(theirs)
        assert advantage.value == pytest.approx(differences.mean(), abs=1e-14)
        of_seeds = [(differences.std(ddof=1) / math.sqrt(len(seeds)), len(seeds) - 1)] if len(seeds) > 1 else []
        expected = [*of_seeds, (max(test, 1 / 200), None)]
        assert [n.freedom for n in advantage.noise] == [freedom for _, freedom in expected]
        errors = [error for error, _ in expected]
        assert [n.error for n in advantage.noise] == pytest.approx(errors, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("kept", [True, False], ids=["paired by example", "independent"])
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_the_advantage_is_the_mean_difference_with_both_noises(seeds: int, kept: bool) -> None:
    assert_pairs(scores(seeds, kept), paired=kept)


def test_twins_are_no_closer_than_one_example_can_tell() -> None:
    found = scores(3, kept=True)
    advantage = found["softmax"].advantage_over(found["twin"])
    assert advantage.value == 0 and advantage.noise[-1].error == 1 / 200


def test_only_common_seeds_and_examples_kept_by_both_are_paired() -> None:
    found = scores(3, kept=True)
    fewer = replace(found["rela"], seeds=(0, 2), scores=found["rela"].scores[:2], correct=found["rela"].correct[:2])
    assert_pairs(found | {"rela": fewer}, paired=True)
    assert_pairs(found | {"rela": replace(found["rela"], correct=None)}, paired=True)


def test_other_examples_are_not_paired_and_the_smaller_test_set_bounds_the_noise() -> None:
    found, others = scores(3, kept=True), scores(3, kept=True, examples=50)
    alone = {name: replace(t, correct=None) for name, t in found.items()}
    few = replace(others["rela"], correct=None)
    assert found["softmax"].advantage_over(others["rela"]) == alone["softmax"].advantage_over(few)
    p, q = found["softmax"].mean, few.mean
    error = math.sqrt((p * (1 - p) + q * (1 - q)) / 50)
    assert alone["softmax"].advantage_over(few).noise[-1].error == pytest.approx(error)


@pytest.mark.parametrize("metric", ["bleu", "bits_per_character"])
def test_draws_are_paired_where_both_are_of_the_same_examples(metric: str) -> None:
    rng = np.random.default_rng(5)
    sign = METRICS[metric].sign
    ours, theirs = (
        SeedScores(variant=name, metric=METRICS[metric], seeds=(0, 1, 2), scores=tuple(rng.random(3)), examples=40,
                   draws=rng.random((400, 3)))
        for name in ("ours", "theirs")
    )  # fmt: skip
    advantage = ours.advantage_over(theirs)
    assert advantage.value == pytest.approx(sign * (ours.mean - theirs.mean))
    by_seed = ours.draws - theirs.draws
    error = math.sqrt(max(3 * by_seed.mean(axis=1).var(ddof=1) - by_seed.var(axis=0, ddof=1).mean(), 0) / 2)
    assert [n.freedom for n in advantage.noise] == [2, None] and advantage.noise[1].error == pytest.approx(error)
    assert [n.freedom for n in ours.advantage_over(replace(theirs, examples=41)).noise] == [2]
    assert [n.freedom for n in ours.advantage_over(replace(theirs, draws=None)).noise] == [2]
    back = theirs.advantage_over(ours)
    assert back.value == pytest.approx(-advantage.value) and back.noise == pytest.approx(advantage.noise)


def test_no_common_seed_has_no_advantage() -> None:
    found = scores(3, kept=True)
    with pytest.raises(ValueError, match="rela and softmax have no seed in common"):
        replace(found["rela"], seeds=(7, 8, 9)).advantage_over(found["softmax"])


def test_pairs_that_share_documents_widen_what_the_examples_tell(bench) -> None:
    """Every document is in ten pairs, which are all right or all wrong: ten pairs tell no more than one."""
    draw = np.random.default_rng(seed())
    shares = {"softmax": 0.6, "rela": 0.7}
    right = {name: np.repeat(draw.random((1, 200)) < share, 10, axis=1).repeat(3, 0) for name, share in shares.items()}
    documents = np.stack([np.repeat(np.arange(200), 10), 200 + np.arange(2000)], axis=1).astype(np.int32)
    widths = []
    for shared in (None, documents):
        world = bench(task="lra-retrieval", documents=shared)
        for name, correct in right.items():
            world.train(name, (), correct=correct)
        table = table_of(world.records)
        found = scores_by_variant(table, board_keys(table)[0], world.predictions)
        level = found["rela"].level()
        of_test = found["rela"].advantage_over(found["softmax"]).noise[-1].error
        widths.append((level.high - level.low, of_test))
    for alone, together in zip(*widths, strict=True):
        assert 2.5 < together / alone < 3.8  # √10
