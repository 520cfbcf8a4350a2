"""linformer against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools

import pytest
import torch
from low_rank_cases import HEADS, LONGEST, WIDTH, built, draw, shape, valid_of

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import Mask
from attnbench.variants.low_rank.linformer import Linformer


@pytest.mark.parametrize("sharing", ["separate", "headwise", "key-value"])
def test_linformer_equals_softmax_over_mixed_keys_masked_before_mixing(sharing: str) -> None:
    variant = built(Linformer, k=5, sharing=sharing)
    query, key, value = draw(11, 30, 30)
    valid = valid_of(30, 19, length=30)
    output = variant(query, key, value, Mask(valid))
    for b, h in itertools.product(range(2), range(HEADS)):
        real = int(valid[b].sum())
        mixes = [m[h if sharing == "separate" else 0, :, :real] for m in (variant.mix_keys, variant.mix_values)]
        scores = query[b, h] @ (mixes[0] @ key[b, h, :real]).T / WIDTH**0.5
        expected = scores.softmax(-1) @ (mixes[1] @ value[b, h, :real])
        torch.testing.assert_close(output[b, h], expected, rtol=1e-10, atol=1e-12)


def test_linformer_counts_its_projections_by_how_they_are_shared() -> None:
    one = 5 * LONGEST
    for sharing, count in (("headwise", 2), ("key-value", 1), ("separate", 2 * HEADS)):
        assert sum(p.numel() for p in Linformer(shape(), k=5, sharing=sharing).parameters()) == count * one


def test_linformer_refuses_more_keys_than_it_has_columns_for() -> None:
    with pytest.raises(Unsupported, match="at most 48 keys, got 49"):
        Linformer(shape())(*draw(3, 49, 49), Mask())
    assert Linformer(shape()).supports(shape(causal=True)) == "it has no causal form"


@pytest.mark.parametrize("length", [LONGEST, 20])
def test_linformer_equals_the_released_port_where_nothing_is_masked(length: int) -> None:
    """The package `linformer` ignores masks, so only unpadded input can be compared."""
    theirs = pytest.importorskip("linformer", reason="the package linformer is not installed")
    width = HEADS * WIDTH
    torch.manual_seed(0)
    layer = theirs.LinformerSelfAttention(width, LONGEST, k=5, heads=HEADS).double()
    with torch.no_grad():
        layer.to_out.weight.copy_(torch.eye(width))
        layer.to_out.bias.zero_()
    variant = built(Linformer, k=5)
    with torch.no_grad():
        variant.mix_keys[0] = layer.proj_k.T
        variant.mix_values[0] = layer.proj_v.T
    x = torch.randn(2, length, width, dtype=torch.float64)
    heads = [m(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for m in (layer.to_q, layer.to_k, layer.to_v)]
    ours = variant(*heads, Mask()).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours, layer(x), rtol=1e-5, atol=1e-5)
