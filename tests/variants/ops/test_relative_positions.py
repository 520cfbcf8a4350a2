"""Sums over relative positions against explicit loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.variants.scores.relative import collect, spread


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 12), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_spread_and_collect_are_adjoint_and_sum_each_pair_once(queries: int, keys: int, first: int, clip: int) -> None:
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    buckets = torch.randn(1, 1, queries, 2 * clip + 1, generator=generator, dtype=torch.float64)
    pairs = torch.randn(1, 1, queries, keys, generator=generator, dtype=torch.float64)
    expected_pairs, expected_buckets = torch.zeros_like(pairs), torch.zeros_like(buckets)
    for i in range(queries):
        for j in range(keys):
            row = max(-clip, min(clip, j - i - first)) + clip
            expected_pairs[..., i, j] = buckets[..., i, row]
            expected_buckets[..., i, row] += pairs[..., i, j]
    assert torch.equal(spread(buckets, first, keys), expected_pairs)
    torch.testing.assert_close(collect(pairs, first, clip), expected_buckets)
    torch.testing.assert_close((spread(buckets, first, keys) * pairs).sum(), (buckets * expected_buckets).sum())
