"""Sums over the past in chunks."""

from __future__ import annotations

import math

import pytest
import torch
from feature_cases import draw

from attnbench.variants.ops.features import KeyFeatures, attend_past, chunk_for


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 8, 50])
def test_chunks_of_any_size_give_the_same_sums(chunk: int, scaled: bool) -> None:
    query, key, value = (x.abs() for x in draw(23, 23, 23))
    log_scale = draw(23, scale=30.0)[0][..., 0] if scaled else None
    sums = attend_past(query, KeyFeatures(key, log_scale), value, chunk)
    relative = torch.ones(23, 23).tril().to(query.dtype)
    if log_scale is not None:
        gap = log_scale[..., None, :].expand(-1, -1, 23, -1).masked_fill(relative == 0, -math.inf)
        relative = (gap - gap.amax(-1, keepdim=True)).exp()
    torch.testing.assert_close(sums, (query @ key.mT * relative) @ value, rtol=1e-9, atol=1e-12)


def test_chunks_grow_with_the_root_of_the_length() -> None:
    assert [chunk_for(n) for n in (1, 63, 64, 4096, 4097, 16384)] == [1, 63, 64, 64, 128, 128]
