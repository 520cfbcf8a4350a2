"""Gaps worked out together are the gaps of the pairs, and what cannot be worked out together is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnbench.bench.core.metrics import METRICS
from attnbench.bench.score.pairwise import pairwise_differences
from attnbench.bench.score.quality import SeedScores

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


def assert_pairs(found: dict[str, SeedScores]) -> None:
    gap = pairwise_differences(found)
    for one in NAMES:
        for other in set(NAMES) - {one}:
            together, alone = gap(one, other), found[one].gap(found[other])
            assert together.value == pytest.approx(alone.value, abs=1e-14)
            assert [n.freedom for n in together.noise] == [n.freedom for n in alone.noise]
            errors = [n.error for n in alone.noise]
            assert [n.error for n in together.noise] == pytest.approx(errors, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("kept", [True, False], ids=["paired by example", "independent"])
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_together_as_pair_by_pair(seeds: int, kept: bool) -> None:
    assert_pairs(scores(seeds, kept))


def test_twins_are_no_closer_than_one_example_can_tell() -> None:
    gap = pairwise_differences(scores(3, kept=True))("softmax", "twin")
    assert gap.value == 0 and gap.noise[-1].error == 1 / 200


def test_other_seeds_examples_or_quantities_go_pair_by_pair() -> None:
    found = scores(3, kept=True)
    fewer = replace(found["rela"], seeds=(0, 1), scores=found["rela"].scores[:2], correct=found["rela"].correct[:2])
    assert_pairs(found | {"rela": fewer})
    assert_pairs(found | {"rela": replace(found["rela"], correct=None)})
    bits = {name: replace(t, metric=METRICS["bits_per_character"], correct=None) for name, t in found.items()}
    assert_pairs(bits)


def test_no_trials_have_no_gaps() -> None:
    with pytest.raises(KeyError):
        pairwise_differences({})("softmax", "rela")
