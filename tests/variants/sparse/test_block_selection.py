"""moba block by block from its definition, in float64."""

from __future__ import annotations

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, Unsupported
from attnbench.variants.sparse.block_selection import BlockSelection

HEADS, WIDTH, LENGTH = 4, 6, 22


def made(block: int, blocks: int, causal: bool = True, kv_heads: int = 2) -> BlockSelection:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, kv_heads=kv_heads, max_length=64, causal=causal)
    return BlockSelection(shape, block=block, blocks=blocks)


def drawn(kv_heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(21))
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(2, n, LENGTH, WIDTH, generator=generator, dtype=torch.float64) for n in heads]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block", "blocks"), [(4, 3), (5, 2), (1, 4), (3, 1), (40, 2), (4, 9)])
def test_each_query_sees_its_own_block_and_the_nearest_others(block: int, blocks: int, causal: bool) -> None:
    variant, (query, key, value) = made(block, blocks, causal), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 4:9], valid[1, -3:] = False, False
    expected = torch.zeros(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for b in range(2):
        members = [[t for t in range(g, min(g + block, LENGTH)) if valid[b, t]] for g in range(0, LENGTH, block)]
        for h in range(HEADS):
            keys = key[b, h // 2]
            for i in range(LENGTH):
                own = i // block
                near = {
                    g: float(query[b, h, i] @ keys[m].mean(0))
                    for g, m in enumerate(members)
                    if m and (g < own if causal else g != own)
                }
                chosen = [own, *sorted(near, key=lambda g: near[g], reverse=True)[: blocks - 1]]
                seen = [t for g in chosen for t in members[g] if t <= i or not causal]
                if seen:
                    expected[b, h, i, seen] = (keys[seen] @ query[b, h, i] / WIDTH**0.5).softmax(-1)
    mask = Mask(valid, causal)
    torch.testing.assert_close(variant.weights(query, key, mask), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(7, 15)), expected[:, :, 7:15])
    output = expected @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(variant(query, key, value, mask), output)
    if causal:
        torch.testing.assert_close(variant(query[:, :, -5:], key, value, mask), output[:, :, -5:])


def test_equal_blocks_are_taken_from_the_nearest_on_and_other_queries_are_refused() -> None:
    variant, (query, key, value) = made(2, 3), drawn()
    seen = variant.weights(query, torch.zeros_like(key), Mask(causal=True))[0, 0] != 0
    assert seen[11].nonzero().flatten().tolist() == [6, 7, 8, 9, 10, 11]
    with pytest.raises(Unsupported, match="one sequence"):
        variant(query[:, :, :9], key[:, :, :5], value[:, :, :5], Mask(causal=True))
