"""nystrom against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools

import pytest
import torch
from low_rank_cases import HEADS, WIDTH, built, draw, shape, softmax, valid_of
from torch import Tensor

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask
from attnbench.variants.low_rank.nystrom import Nystrom


def explicit_nystrom(query: Tensor, key: Tensor, landmarks: int) -> Tensor:
    """The implied matrix for one sequence (heads, n, d), segment by segment, with a true pseudo-inverse."""
    n = query.shape[-2]
    edges = [[j for j in range(n) if j * landmarks // n == s] for s in range(landmarks)]
    q_marks, k_marks = (torch.stack([x[..., e, :].mean(-2) for e in edges], -2) for x in (query, key))
    return softmax(query, k_marks) @ torch.linalg.pinv(softmax(q_marks, k_marks)) @ softmax(q_marks, key)


@pytest.mark.parametrize("length", [13, 30, 48])
def test_nystrom_equals_the_explicit_product_with_a_true_inverse(length: int) -> None:
    """Lengths need not be multiples of the landmarks; 30 iterations converge."""
    variant = built(Nystrom, landmarks=6, iterations=30, kernel=0)
    query, key, value = draw(length, length, length, scale=3.0)
    output = variant(query, key, value, Mask())
    for b in range(2):
        expected = explicit_nystrom(query[b], key[b], 6) @ value[b]
        torch.testing.assert_close(output[b], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [1, 5, 12])
def test_nystrom_is_exact_softmax_with_a_landmark_for_each_token_also_when_padded(length: int) -> None:
    variant = built(Nystrom, landmarks=12, kernel=0)
    query, key, value = draw(length, length, length)
    expected = softmax(query, key) @ value
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-10, atol=1e-12)
    padded = [torch.cat([x, 1 + x[:, :, :1].expand(-1, -1, 33, -1)], 2) for x in (query, key, value)]
    output = variant(*padded, Mask(valid_of(length, length, length=length + 33)))
    torch.testing.assert_close(output[:, :, :length], expected, rtol=1e-10, atol=1e-12)


def test_nystrom_error_falls_with_more_landmarks() -> None:
    query, key, value = draw(48, 48, 48)
    exact = softmax(query, key) @ value
    errors = [
        float((built(Nystrom, landmarks=m, kernel=0)(query, key, value, Mask()) - exact).norm() / exact.norm())
        for m in (2, 12, 36, 48)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-12


def test_nystrom_adds_a_depthwise_convolution_of_the_real_values() -> None:
    with_filters, without = built(Nystrom, landmarks=6, kernel=5), built(Nystrom, landmarks=6, kernel=0)
    query, key, value = draw(20, 20, 20)
    valid = valid_of(20, 15, length=20)
    extra = with_filters(query, key, value, Mask(valid)) - without(query, key, value, Mask(valid))
    for b, h, i in itertools.product(range(2), range(HEADS), range(15)):
        real = int(valid[b].sum())
        window = [(t, i + t - 2) for t in range(5) if 0 <= i + t - 2 < real]
        expected = sum(with_filters.filters[h, 0, t, 0] * value[b, h, j] for t, j in window)
        torch.testing.assert_close(extra[b, h, i], expected, rtol=1e-9, atol=1e-10)
    with pytest.raises(SelectionError, match="odd width"):
        Nystrom(shape(), kernel=4)


def released_nystrom(landmarks: int) -> torch.nn.Module:
    theirs = pytest.importorskip("nystrom_attention", reason="the package nystrom-attention is not installed")
    width = HEADS * WIDTH
    torch.manual_seed(0)
    layer = theirs.NystromAttention(width, WIDTH, HEADS, num_landmarks=landmarks, residual_conv_kernel=5).double()
    with torch.no_grad():
        layer.to_out[0].weight.copy_(torch.eye(width))
        layer.to_out[0].bias.zero_()
    return layer


def test_nystrom_equals_the_released_port_head_by_head() -> None:
    """nystrom-attention takes one maximum over batch and heads to start its inverse, so it is given one at a time."""
    layer = released_nystrom(8)
    variant = built(Nystrom, landmarks=8, kernel=5)
    with torch.no_grad():
        variant.filters.copy_(layer.res_conv.weight)
    x = torch.randn(2, 40, HEADS * WIDTH, dtype=torch.float64)
    split = [p.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in layer.to_qkv(x).chunk(3, -1)]
    ours = variant(*split, Mask())
    for b, h in itertools.product(range(2), range(HEADS)):
        theirs = alone(layer, x[b : b + 1], h)
        torch.testing.assert_close(ours[b, h], theirs[0], rtol=1e-5, atol=1e-5)


def alone(layer: torch.nn.Module, x: Tensor, head: int) -> Tensor:
    """The released layer with one head of its own: (1, n, head_dim)."""
    package = pytest.importorskip("nystrom_attention", reason="the package nystrom-attention is not installed")
    one = package.NystromAttention(x.shape[-1], WIDTH, 1, num_landmarks=8, residual_conv_kernel=5).double()
    with torch.no_grad():
        rows = layer.to_qkv.weight.view(3, HEADS, WIDTH, -1)[:, head].reshape(3 * WIDTH, -1)
        one.to_qkv.weight.copy_(rows)
        one.res_conv.weight.copy_(layer.res_conv.weight[head : head + 1])
    one.to_out = torch.nn.Identity()
    output: Tensor = one(x)
    return output


def test_nystrom_attention_lets_the_batch_in_where_ours_does_not() -> None:
    layer = released_nystrom(8)
    x = torch.randn(2, 40, HEADS * WIDTH, dtype=torch.float64)
    other = torch.cat([x[:1], 8 * x[1:]])
    assert (layer(x)[0] - layer(other)[0]).abs().max() > 1e-4
    variant = built(Nystrom, landmarks=8)
    split = [
        [p.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in layer.to_qkv(y).chunk(3, -1)] for y in (x, other)
    ]
    assert torch.equal(variant(*split[0], Mask())[0], variant(*split[1], Mask())[0])
