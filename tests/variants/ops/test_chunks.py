"""Chunks of a sequence and the pairs that they allow."""

from __future__ import annotations

import pytest
import torch
from sorting_cases import shape

from attnbench.variants.contract import AttentionShape
from attnbench.variants.ops.chunks import cut, paired_density, with_previous
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn


def test_cut_fills_the_last_bucket_and_with_previous_has_nothing_before_the_first() -> None:
    blocks = cut(torch.arange(1, 8)[None], 3, 1)
    assert blocks.tolist() == [[[1, 2, 3], [4, 5, 6], [7, 0, 0]]]
    assert with_previous(blocks, 1).tolist() == [[[0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 0, 0]]]
    assert cut(torch.ones(1, 4, 2, dtype=torch.bool), 3, 1).tolist()[0][1] == [[True] * 2, [False] * 2, [False] * 2]


def test_density_counts_pairs_of_buckets_against_allowed_scores() -> None:
    long = AttentionShape(heads=2, head_dim=32, max_length=4096)
    causal = AttentionShape(heads=2, head_dim=32, max_length=4096, causal=True)
    assert Reformer(long).density(long) == 2 * 2 * 64 / 4096
    assert Sinkhorn(long).density(long) == 2 * 64 / 4096
    assert paired_density(causal, 64) == pytest.approx(4 * 64 / 4097)
    assert paired_density(shape(), 64) == 1.0
