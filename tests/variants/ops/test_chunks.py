"""Chunks of a sequence and the pairs that they allow."""

from __future__ import annotations

import torch

from attnbench.variants.ops.chunks import cut, with_previous


def test_cut_fills_the_last_bucket_and_with_previous_has_nothing_before_the_first() -> None:
    blocks = cut(torch.arange(1, 8)[None], 3, 1)
    assert blocks.tolist() == [[[1, 2, 3], [4, 5, 6], [7, 0, 0]]]
    assert with_previous(blocks, 1).tolist() == [[[0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 0, 0]]]
    assert cut(torch.ones(1, 4, 2, dtype=torch.bool), 3, 1).tolist()[0][1] == [[True] * 2, [False] * 2, [False] * 2]
