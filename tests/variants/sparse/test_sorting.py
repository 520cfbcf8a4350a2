"""What reformer and sinkhorn have in common: padding, empty sequences, half precision, dropout and length."""

from __future__ import annotations

import pytest
import torch
from sorting_cases import HEADS, LONGEST, WIDTH, build, draw, valid_of

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn

either = pytest.mark.parametrize("name", ["reformer", "sinkhorn"])


@either
@pytest.mark.parametrize("causal", [False, True])
def test_padding_however_long_and_the_rest_of_the_batch_change_nothing(name: str, causal: bool) -> None:
    variant = build(name, causal)
    query, key, value = draw(48, 48, 48, batch=3)
    for real in (1, 4, 5, 9, 26, 48):
        valid = valid_of(48, real, 23, length=48)
        output = variant(query, key, value, Mask(valid, causal))
        assert output.isfinite().all()
        alone = variant(*(x[1:2, :, :real] for x in (query, key, value)), Mask(causal=causal))
        torch.testing.assert_close(output[1:2, :, :real], alone, rtol=1e-9, atol=1e-10)
        wild = [torch.where(valid[:, None, :, None], x, 1e6) for x in (query, key, value)]
        assert torch.equal(variant(*wild, Mask(valid, causal))[1, :, :real], output[1, :, :real])
        louder = [torch.cat([9 * x[:1], x[1:2], -5 * x[2:]]) for x in (query, key, value)]
        assert torch.equal(variant(*louder, Mask(valid, causal))[1, :, :real], output[1, :, :real])


@either
@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_without_a_real_key_gives_zeros_and_no_gradient(name: str, causal: bool) -> None:
    variant = build(name, causal)
    inputs = [x.requires_grad_() for x in draw(13, 13, 13)]
    output = variant(*inputs, Mask(valid_of(13, 0, length=13), causal))
    assert (output[1] == 0).all()
    assert (output[0] != 0).any()
    for gradient in torch.autograd.grad(1e3 * output.sum(), inputs, allow_unused=True):
        assert gradient is None or (gradient.isfinite().all() and (gradient[1] == 0).all())


@either
def test_half_precision_accumulates_in_single(name: str) -> None:
    variant = build(name, causal=False)
    inputs = [x.bfloat16() for x in draw(45, 45, 45)]
    output = variant(*inputs, Mask())
    assert output.dtype == torch.bfloat16
    exact = variant(*(x.double() for x in inputs), Mask())
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 1e-5).all()


@either
def test_weights_are_dropped_in_training_and_the_mean_is_kept(name: str) -> None:
    dropped = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, dropout=0.4)
    torch.manual_seed(1)
    variant = (Reformer(dropped, bucket=4) if name == "reformer" else Sinkhorn(dropped, block=5)).double()
    inputs = draw(20, 20, 20)
    with torch.no_grad():
        exact = variant.eval()(*inputs, Mask())
        variant.train()
        runs = torch.stack([variant(*inputs, Mask()) for _ in range(400)])
    assert (runs[0] - runs[1]).abs().max() > 0.1
    error = (runs.mean(0) - exact) / (runs.std(0) / 400**0.5)
    assert float(error.square().mean()) == pytest.approx(1.0, abs=0.5)


@either
def test_longer_sequences_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        build(name, causal=False)(*draw(49, 49, 49), Mask())
