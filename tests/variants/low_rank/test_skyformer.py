"""skyformer against explicit matrices in float64."""

from __future__ import annotations

import pytest
import torch
from low_rank_cases import LONGEST, built, draw, shape
from torch import Tensor

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask
from attnbench.variants.low_rank.skyformer import Skyformer


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    distance = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return (-distance / (2 * x.shape[-1] ** 0.5)).exp()


@pytest.mark.parametrize("ridge", [0.1, 2.0])
def test_skyformer_equals_the_explicit_product_with_a_true_inverse(ridge: float) -> None:
    variant = built(Skyformer, landmarks=8, ridge=ridge, iterations=30)
    query, key, value = draw(20, 20, 20)
    at = [2, 7, 12, 17]  # the middles of four equal parts of twenty tokens
    marks = torch.cat([query[:, :, at], key[:, :, at]], 2)
    middle = gaussian(marks, marks) + ridge * torch.eye(8, dtype=torch.float64)
    expected = gaussian(query, marks) @ torch.linalg.inv(middle) @ gaussian(marks, key) @ value
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-8, atol=1e-8)


def test_skyformer_with_every_token_a_landmark_is_gaussian_kernel_attention() -> None:
    variant = built(Skyformer, landmarks=2 * LONGEST, ridge=1e-6, iterations=40)
    query, key, value = draw(24, 24, 24)
    torch.testing.assert_close(variant(query, key, value, Mask()), gaussian(query, key) @ value, rtol=1e-4, atol=1e-4)


def test_skyformer_refuses_what_it_cannot_invert() -> None:
    with pytest.raises(SelectionError, match="even number"):
        Skyformer(shape(), landmarks=7)
    with pytest.raises(SelectionError, match="positive ridge"):
        Skyformer(shape(), ridge=0.0)
