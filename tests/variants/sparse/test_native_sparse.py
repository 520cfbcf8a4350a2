"""nsa branch by branch from its definition, in float64."""

from __future__ import annotations

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, SelectionError
from attnbench.variants.sparse.native_sparse import NativeSparse

HEADS, WIDTH, HIDDEN, LENGTH = 4, 6, 10, 26


def made(block: int, blocks: int, window: int, kv_heads: int = 2) -> NativeSparse:
    torch.manual_seed(seed(41))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    shape = AttentionShape(**sizes, max_length=64, causal=True)
    return NativeSparse(shape, block=block, blocks=blocks, window=window).double()


def drawn(kv_heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(42))
    sizes = [(2, HEADS, LENGTH, WIDTH), *2 * [(2, kv_heads, LENGTH, WIDTH)], (2, LENGTH, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return (keys @ query / WIDTH**0.5).softmax(0) @ values if len(keys) else values.new_zeros(WIDTH)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("block", "blocks", "window"), [(3, 4, 5), (4, 3, 1), (1, 6, 30), (30, 3, 4)])
def test_three_attentions_are_added_by_their_gates(block: int, blocks: int, window: int, padded: bool) -> None:
    variant, (query, key, value, hidden) = made(block, blocks, window), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        valid[0, 5:9], valid[1, -4:] = False, False
    expected = torch.zeros_like(query)
    for b in range(2):
        members = [[t for t in range(g, min(g + block, LENGTH)) if valid[b, t]] for g in range(0, LENGTH, block)]
        for i in torch.nonzero(valid[b]).flatten().tolist():
            own = i // block
            # means of the whole blocks behind, which end at the query at the latest
            past = [g for g, m in enumerate(members) if m and (g + 1) * block - 1 <= i]
            gates = torch.sigmoid(hidden[b, i] @ variant.gate.weight.T).unflatten(0, (3, HEADS))
            for h in range(HEADS):
                q, keys, values = query[b, h, i], key[b, h // 2], value[b, h // 2]
                means = [torch.stack([x[members[g]].mean(0) for g in past]) if past else x[:0] for x in (keys, values)]
                weights = dict.fromkeys(range(own + 1), 0.0)
                weights |= dict(zip(past, (means[0] @ q / WIDTH**0.5).softmax(0).tolist(), strict=True))
                weights |= {g: 2.0 for g in (0, own - 1, own) if g >= 0}
                ranked = sorted(weights, key=lambda g: (weights[g], g), reverse=True)[:blocks]
                chosen = sorted(t for g in ranked for t in members[g] if t <= i)
                near = [t for t in range(max(0, i - window + 1), i + 1) if valid[b, t]]
                expected[b, h, i] = gates[0, h] * attended(q, *means) + sum(
                    gates[n, h] * attended(q, keys[at], values[at]) for n, at in ((1, chosen), (2, near))
                )
    mask, real = Mask(valid if padded else None, True), valid[:, None, :, None]
    torch.testing.assert_close(variant(query, key, value, mask, hidden).where(real, 0), expected)
    weights = variant.weights(query, key, mask, hidden=hidden)
    torch.testing.assert_close((weights @ value.repeat_interleave(2, 1)).where(real, 0), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(6, 13), hidden=hidden), weights[:, :, 6:13])


def test_sizes_have_defaults_and_what_it_cannot_do_is_refused() -> None:
    long = AttentionShape(heads=1, head_dim=4, max_length=4096, causal=True)
    variant = NativeSparse(long)
    assert (variant.block, variant.blocks, variant.window) == (64, 16, 128)
    assert 0.2 < variant.density(long) < 0.6
    assert "causal" in str(variant.supports(AttentionShape(heads=1, head_dim=4, max_length=8)))
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.weights(*drawn()[:2], Mask(causal=True))
