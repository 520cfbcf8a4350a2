"""Caches of shared heads, and what is refused of heads, of packed sequences and of bounds."""

from dataclasses import replace

import pytest
import torch
from seeds import seed

from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import SelectionError, Unsupported

LENGTH, HEADS, KV_HEADS, HEAD_DIM = 24, 6, 2, 8
SHAPE = AttentionShape(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_length=LENGTH, dtype="float64")


def of(name, shape):
    """The variant in float64, drawn alike each time; skips where it cannot do the shape."""
    torch.manual_seed(seed(3))
    try:
        return build(name, shape).double().eval()
    except Unsupported as error:
        pytest.skip(str(error))


def inputs(kv_heads=KV_HEADS, length=LENGTH):
    draw = torch.Generator().manual_seed(seed(5))
    return [
        torch.randn(2, heads, length, HEAD_DIM, generator=draw, dtype=torch.float64, requires_grad=True)
        for heads in (HEADS, kv_heads, kv_heads)
    ]


@pytest.mark.parametrize("name", ["softmax", "rela", "entmax15", "local", "longformer", "sparse", "topk"])
def test_a_cache_holds_the_keys_of_the_kv_heads_only(name):
    shape = replace(SHAPE, causal=True)
    few, many = (of(name, each).state_bytes(each) for each in (shape, replace(shape, kv_heads=HEADS)))
    assert few * HEADS == many * KV_HEADS


def test_kv_heads_must_divide_the_heads():
    assert AttentionShape(heads=4, head_dim=8, max_length=4).kv_heads == 4
    for kv_heads in (3, 8, -1):
        with pytest.raises(SelectionError, match="divides 4 heads"):
            AttentionShape(heads=4, kv_heads=kv_heads, head_dim=8, max_length=4)
    query, key, value = inputs(kv_heads=4)
    for name in ("softmax[impl=eager]", "dot"):
        with pytest.raises(SelectionError, match="divide the 6"):
            of(name, SHAPE)(query, key, value, Mask())


def test_packed_sequences_must_make_up_the_row():
    variant, (query, key, value) = of("softmax", SHAPE), inputs()
    for mask, reason in (
        (Mask(lengths=(7, 3)), "a sum of 10 for 24"),
        (Mask(lengths=(24, 0)), "at least 1"),
        (Mask(lengths=(24,), valid=torch.ones(2, 24, dtype=torch.bool)), "no padding"),
    ):
        with pytest.raises(SelectionError, match=reason):
            variant(query, key, value, mask)


@pytest.mark.parametrize("name", ["local", "linear"])
def test_a_variant_with_a_rule_of_its_own_refuses_bounds(name):
    with pytest.raises(Unsupported, match="does not support masks with bounds"):
        of(name, SHAPE)(*inputs(), Mask(bounds=torch.tensor([[[0, LENGTH]] * LENGTH])))
