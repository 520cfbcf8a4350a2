"""Gradients of the low-rank variants whose landmarks are fewer than the tokens."""

from __future__ import annotations

import pytest
import torch
from low_rank_cases import built, draw, valid_of

from attnbench.variants.contract import Mask, Variant
from attnbench.variants.low_rank.nystrom import Nystrom
from attnbench.variants.low_rank.skyformer import Skyformer


@pytest.mark.parametrize(
    "variant",
    [
        built(Nystrom, landmarks=6, kernel=5),
        built(Nystrom, landmarks=6, kernel=0, iterations=2),
        built(Skyformer, landmarks=6),
        built(Skyformer, landmarks=8, ridge=2.0, iterations=2),
    ],
    ids=["nystrom", "nystrom-2-iterations", "skyformer", "skyformer-2-iterations"],
)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_gradient_is_the_derivative_of_the_output_with_fewer_landmarks_than_tokens(
    variant: Variant, scale: float
) -> None:
    """With a landmark for each token nothing is inverted, and after few iterations the inverse has not converged."""
    query, key, value = draw(17, 17, 17, batch=1)
    inputs = [x.requires_grad_() for x in (scale * query, scale * key, value)]
    valid = valid_of(15, length=17)
    mask = Mask(valid)
    assert torch.autograd.gradcheck(
        lambda *heads: variant(*heads, mask)[:, :, valid[0]], inputs, atol=1e-6, rtol=1e-4, fast_mode=True
    )
