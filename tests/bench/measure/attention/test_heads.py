"""Figures of heads against sums over every entry, one by one."""

import math

import numpy as np
import pytest

from attnbench.bench.measure.attention.heads import entropy, head_diversity


def drawn(heads=4, rows=7, keys=9):
    """Rectified scores: not normalised, with null rows."""
    weights = np.maximum(np.random.default_rng(0).normal(-0.6, 1.0, (heads, rows, keys)), 0.0)
    weights[0, 2] = 0
    weights[:, 3] = 0
    weights[1:, 4] = 0
    return weights


def test_head_diversity_is_the_divergence_of_the_heads_that_look():
    weights = drawn()
    total, used = 0.0, 0
    for row in range(7):
        heads = [weights[h, row] / weights[h, row].sum() for h in range(4) if weights[h, row].sum() > 0]
        if len(heads) < 2:
            continue
        used += 1
        mixture = [sum(head[key] for head in heads) / len(heads) for key in range(9)]
        # the mean Kullback-Leibler divergence from the mixture, which is the same quantity written otherwise
        total += sum(
            head[key] * math.log(head[key] / mixture[key]) for head in heads for key in range(9) if head[key] > 0
        ) / len(heads)
    found = head_diversity(weights)
    assert (found.rows, found.all_rows) == (used, 7) and used < 7
    assert found.total == pytest.approx(total, abs=1e-12)


def test_heads_that_agree_have_no_diversity_and_disjoint_ones_the_most():
    same = np.tile(np.random.default_rng(0).random((1, 5, 6)), (3, 1, 1)) * np.array([1, 5, 0.1])[:, None, None]
    assert head_diversity(same).total == pytest.approx(0.0, abs=1e-12)
    apart = np.eye(3)[:, None, :]
    assert head_diversity(apart).total == pytest.approx(math.log(3))
    assert head_diversity(np.zeros((3, 2, 4))).rows == 0


def test_entropy_of_known_rows():
    assert entropy(np.array([[0.25] * 4, [1, 0, 0, 0]])).tolist() == pytest.approx([math.log(4), 0.0])
