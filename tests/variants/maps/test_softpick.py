"""softpick against its formula in float64, without shifts."""

from __future__ import annotations

import pytest
import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask


@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_rectified_exponentials_over_the_sum_of_their_sizes(causal: bool) -> None:
    model = variant("softpick", causal)
    query, key, _ = inputs()
    valid = torch.arange(7) < torch.tensor([7, 4, 0])[:, None]
    seen = valid[:, None, None, :] & (torch.ones(7, 7).tril().bool() | (not causal))
    above = torch.expm1(query @ key.transpose(-2, -1) / 2).masked_fill(~seen, 0.0)
    expected = above.clamp(min=0) / (above.abs().sum(-1, keepdim=True) + 1e-8)
    found = model.weights(query, key, Mask(valid=valid, causal=causal))
    torch.testing.assert_close(found, expected)
    assert (found[:2] == 0).any() and (found[:2].sum(-1) < 0.999).any() and (found[2] == 0).all()


def test_scores_of_any_size_keep_finite_weights_and_gradients() -> None:
    scores = torch.tensor([[1e4, 0.0, 1e4], [-1e4, -1e4, -1e4], [0.0, 0.0, 0.0], [-1e4, 90.0, 1.0]], requires_grad=True)
    for allowed in (None, torch.tensor([False, True, True])):
        weights = variant("softpick").weigh(scores, allowed)
        first = 0.5 if allowed is None else 0.0
        expected = torch.tensor([[first, 0, 1 - first], [0, 0, 0], [0, 0, 0], [0, 1, 0]])
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)
        assert torch.autograd.grad(weights.square().sum(), scores)[0].isfinite().all()
