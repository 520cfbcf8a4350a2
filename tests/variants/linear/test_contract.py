"""linear, performer and cosformer against explicit N x N matrices in float64, and the range of cosformer."""

from __future__ import annotations

import pytest
import torch
from feature_cases import HEADS, VARIANTS, WIDTH, brute, build, draw

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.cosformer import Cosformer

every = pytest.mark.parametrize("name", VARIANTS)


@every
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 131])
def test_output_and_weights_equal_the_explicit_matrix(name: str, causal: bool, length: int) -> None:
    variant = build(name, causal=causal)
    query, key, value = draw(length, length, length)
    valid = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) > 0.3
    for mask in (Mask(causal=causal), Mask(valid, causal)):
        output, weights = brute(name, variant, query, key, value, mask)
        torch.testing.assert_close(variant(query, key, value, mask), output, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(variant.weights(query, key, mask), weights, rtol=1e-9, atol=1e-10)
        rows = slice(length // 2, length)
        torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows], rtol=1e-9, atol=1e-10)


@every
@pytest.mark.parametrize(("queries", "keys", "causal"), [(5, 70, True), (70, 5, True), (9, 30, False), (30, 9, False)])
def test_queries_and_keys_may_differ_in_number(name: str, queries: int, keys: int, causal: bool) -> None:
    variant = build(name, causal=causal)
    query, key, value = draw(queries, keys, keys)
    mask = Mask(causal=causal)
    expected, _ = brute(name, variant, query, key, value, mask)
    output = variant(query, key, value, mask)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-10)
    if causal and queries > keys:
        assert (output[:, :, : queries - keys] == 0).all()


@every
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_those_of_the_explicit_matrix(name: str, causal: bool) -> None:
    variant = build(name, causal=causal)
    inputs = [x.requires_grad_() for x in draw(70, 70, 70)]
    valid = torch.ones(2, 70, dtype=torch.bool)
    valid[1, 50:] = False
    mask = Mask(valid, causal)
    grad_output = draw(70, batch=2)[0]
    ours = torch.autograd.grad(variant(*inputs, mask), inputs, grad_output)
    theirs = torch.autograd.grad(brute(name, variant, *inputs, mask)[0], inputs, grad_output)
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-9)


@every
def test_nothing_after_a_query_touches_it_even_by_rounding(name: str) -> None:
    """Keys a thousand times larger would ruin any maximum taken over the whole sequence."""
    variant = build(name, causal=True, dtype=torch.float32)
    inputs = draw(150, 150, 150, dtype=torch.float32)
    before = variant(*inputs, Mask(causal=True))
    for cut in (0, 40, 63, 64, 100, 148):
        changed = [torch.cat([x[:, :, : cut + 1], 1e3 * x[:, :, cut + 1 :]], 2) for x in inputs]
        assert torch.equal(variant(*changed, Mask(causal=True))[:, :, : cut + 1], before[:, :, : cut + 1])


def test_cosformer_keeps_rectified_rows_finite_and_refuses_positions_beyond_its_range() -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16)
    variant = Cosformer(shape)
    query, key, value = draw(16, 16, 16, dtype=torch.float32)
    assert (variant(-query.abs(), key, value, Mask()) == 0).all()
    with pytest.raises(Unsupported, match="at most 16 positions, got 17"):
        variant(*draw(17, 17, 17), Mask())
