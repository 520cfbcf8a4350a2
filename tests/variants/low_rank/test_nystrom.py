"""nystrom against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools

import pytest
import torch
from low_rank_cases import HEADS, built, draw, shape, softmax, valid_of
from torch import Tensor

from attnbench.bench.core.errors import SelectionError, Unsupported
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
    with pytest.raises(Unsupported, match="queries and keys must be its tokens"):
        without(*draw(5, 6, 6), Mask())
