"""Batches counted in tokens: all pairs once an epoch, no batch above the budget, any step by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.wings.translation.batching import TokenBatches


@given(st.lists(st.integers(1, 40), min_size=1, max_size=200), st.integers(1, 100), st.integers(0, 3))
def test_an_epoch_sees_every_pair_once_within_the_budget(lengths, tokens, seed):
    batches = TokenBatches(np.array(lengths), tokens, task="t", seed=seed)
    for epoch in range(2):
        steps = [batches.at(epoch * len(batches) + place) for place in range(len(batches))]
        assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))
        for at in steps:
            widest = max(lengths[pair] for pair in at)
            assert len(at) == 1 or len(at) * widest <= tokens


def test_a_step_is_a_function_of_task_seed_and_step_alone():
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    one, other = (TokenBatches(lengths, 300, task="t", seed=1) for _ in range(2))
    forwards = [one.at(step).tolist() for step in range(100)]
    backwards = [other.at(step).tolist() for step in reversed(range(100))]
    assert forwards == backwards[::-1]
    assert TokenBatches(lengths, 300, task="t", seed=2).at(0).tolist() != forwards[0]
    assert TokenBatches(lengths, 300, task="u", seed=1).at(0).tolist() != forwards[0]


def test_pairs_of_one_batch_are_of_like_length_and_meet_others_in_the_next_epoch():
    lengths = np.random.default_rng(0).integers(1, 60, 2_000)
    batches = TokenBatches(lengths, 600, task="t", seed=0)
    spreads = [np.ptp(lengths[batches.at(step)]) for step in range(len(batches))]
    assert max(spreads) <= 8
    padding = sum(len(at) * lengths[at].max() for at in map(batches.at, range(len(batches)))) / lengths.sum()
    assert padding == pytest.approx(1.0, abs=0.05)
    first, second = (
        {frozenset(batches.at(e * len(batches) + s).tolist()) for s in range(len(batches))} for e in (0, 1)
    )
    assert len(first & second) < len(batches) / 10
