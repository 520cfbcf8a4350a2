"""Caches of shared heads, sequences packed side by side, and bounds of a mask."""

from dataclasses import replace

import pytest
import torch
from seeds import seed

from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import SelectionError, Unsupported

LENGTH, HEADS, KV_HEADS, HEAD_DIM = 24, 6, 2, 8
SHAPE = AttentionShape(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_length=LENGTH, dtype="float64")
NAMES = [entry.name for entry in VARIANTS.entries()]


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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_are_attended_to_each_by_itself(name, causal):
    variant = of(name, replace(SHAPE, causal=causal))
    lengths = (7, 3, 1, 7, 6)
    query, key, value = inputs()
    packed = Mask(causal=causal, lengths=lengths)
    try:
        hidden = torch.randn(2, 24, variant.shape.hidden_width, dtype=query.dtype)
        found = variant(query, key, value, packed, hidden)
    except Unsupported as error:
        # the rest says why
        assert name in ("routing", "local-routing", "indexer") and "loss of its last forward" in str(error)
        return
    pieces = zip(*(x.split(lengths, 2) for x in (query, key, value)), hidden.split(lengths, 1), strict=True)
    expected = torch.cat([variant(*piece, Mask(causal=causal), of_piece) for *piece, of_piece in pieces], 2)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    gradients = torch.autograd.grad(found.sum(), (query, key), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_packed_sequences_must_make_up_the_row():
    variant, (query, key, value) = of("softmax", SHAPE), inputs()
    for mask, reason in (
        (Mask(lengths=(7, 3)), "a sum of 10 for 24"),
        (Mask(lengths=(24, 0)), "at least 1"),
        (Mask(lengths=(24,), valid=torch.ones(2, 24, dtype=torch.bool)), "no padding"),
    ):
        with pytest.raises(SelectionError, match=reason):
            variant(query, key, value, mask)


BOUNDED = [
    "softmax", "softmax[impl=eager]", "softmax1", "rela", "entmax15", "entmax[alpha=1.25]", "sigmoid", "topk", "dot",
    "general",
]  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hide_what_lies_outside(name):
    variant, (query, key, value) = of(name, replace(SHAPE, causal=True)), inputs()
    at = torch.arange(LENGTH)
    bounds = torch.stack([(at - 3).clamp(min=0), at + 1], -1)[None]
    found = variant(query, key, value, Mask(causal=True, bounds=bounds))
    for row in (0, 2, 11, LENGTH - 1):
        window = slice(max(0, row - 3), row + 1)
        alone = variant(query[:, :, row : row + 1], key[:, :, window], value[:, :, window], Mask(causal=True))
        if name != "rela":
            torch.testing.assert_close(found[:, :, row : row + 1], alone, atol=1e-11, rtol=1e-9)
    gradient = torch.autograd.grad(found[:, :, :4].sum(), key)[0]
    assert (gradient[:, :, 4:] == 0).all()


def test_a_variant_with_a_rule_of_its_own_refuses_bounds():
    bounds = torch.tensor([[[0, LENGTH]] * LENGTH])
    for name in sorted(set(NAMES) - {n.split("[")[0] for n in BOUNDED} - {"softmax"}):
        variant = VARIANTS.build(Spec.parse(name), SHAPE)
        if variant.supports(SHAPE) is None and not variant.takes_bounds:
            with pytest.raises(Unsupported, match="does not support masks with bounds"):
                variant(*inputs(), Mask(bounds=bounds))
