"""linear, performer and cosformer against explicit N x N matrices in float64."""

from __future__ import annotations

import math

import pytest
import torch
from feature_cases import HEADS, VARIANTS, WIDTH, brute, build, draw

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.cosformer import Cosformer
from attnbench.variants.linear.linear import Linear
from attnbench.variants.linear.performer import Performer

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


@every
def test_a_prefix_has_the_outputs_of_the_whole(name: str) -> None:
    variant = build(name, causal=True)
    inputs = draw(150, 150, 150)
    whole = variant(*inputs, Mask(causal=True))
    for length in (1, 63, 64, 65, 149):
        part = variant(*(x[:, :, :length] for x in inputs), Mask(causal=True))
        torch.testing.assert_close(part, whole[:, :, :length], rtol=1e-9, atol=1e-10)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_padding_and_the_rest_of_the_batch_change_nothing(name: str, causal: bool) -> None:
    variant = build(name, causal=causal, dtype=torch.float32)
    query, key, value = draw(90, 90, 90, batch=3, dtype=torch.float32)
    valid = torch.ones(3, 90, dtype=torch.bool)
    valid[1, 61:] = False
    output = variant(query, key, value, Mask(valid, causal))
    wild = [torch.where(valid[:, None, :, None], x, 1e4 * x) for x in (query, key, value)]
    assert torch.equal(variant(*wild, Mask(valid, causal))[1, :, :61], output[1, :, :61])
    alone = variant(*(x[1:2, :, :61] for x in (query, key, value)), Mask(causal=causal))
    torch.testing.assert_close(output[1:2, :, :61], alone, rtol=1e-4, atol=1e-5)
    others = [torch.cat([100 * x[:1], x[1:2], -x[2:]]) for x in (query, key, value)]
    assert torch.equal(variant(*others, Mask(valid, causal))[1, :, :61], output[1, :, :61])


@every
def test_steps_equal_the_parallel_form_and_their_state_has_the_stated_bytes(name: str) -> None:
    variant = build(name, causal=True, dtype=torch.float32)
    inputs = draw(80, 80, 80, batch=1, dtype=torch.float32)
    expected = variant(*inputs, Mask(causal=True))
    state, outputs = None, []
    for t in range(80):
        output, state = variant.step(*(x[:, :, t : t + 1] for x in inputs), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), expected, rtol=1e-4, atol=1e-5)
    held = [state.sums] if state.log_scale is None else [state.sums, state.log_scale]
    assert variant.state_bytes(variant.shape) == sum(x.nbytes for x in held)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_rows_without_a_key_are_zero_with_zero_gradient(name: str, causal: bool) -> None:
    variant = build(name, causal=causal, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in draw(10, 10, 10, dtype=torch.float32)]
    valid = torch.zeros(2, 10, dtype=torch.bool)
    valid[0, 4:] = True
    output = variant(*inputs, Mask(valid, causal))
    assert (output[1] == 0).all()
    assert (variant.weights(*inputs[:2], Mask(valid, causal))[1] == 0).all()
    if causal:
        assert (output[0, :, :4] == 0).all()
    for gradient in torch.autograd.grad(output.sum() * 1e3, inputs):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


@every
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_accumulates_in_single(name: str, causal: bool) -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=2048, causal=causal)
    variant = VARIANTS[name](shape)
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(1, HEADS, 2048, WIDTH, generator=generator).bfloat16() for _ in range(3)]
    output = variant(*inputs, Mask(causal=causal))
    assert output.dtype == torch.bfloat16
    exact = variant.double()(*(x.double() for x in inputs), Mask(causal=causal))
    # one rounding of the output, and no more: sums of 2,048 terms in bfloat16 would be off by far
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 1e-5).all()


def test_density_counts_feature_entries_against_allowed_scores() -> None:
    plain = AttentionShape(heads=2, head_dim=32, max_length=4096)
    causal = AttentionShape(heads=2, head_dim=32, max_length=4096, causal=True)
    assert Linear(plain).density(plain) == 2 * 32 / 4096
    assert Cosformer(plain).density(plain) == 2 * 64 / 4096
    assert Performer(plain).features == int(32 * math.log(32)) == 110
    assert Performer(plain).density(plain) == 2 * 110 / 4096
    assert Linear(causal).density(causal) == pytest.approx((2 * 32 + 64) * 4096 / (4096 * 4097 / 2))
