"""stick-breaking by breaking a stick, key by key."""

from __future__ import annotations

import math

import pytest
import torch
from map_cases import inputs, variant

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.stick_breaking import StickBreaking


@pytest.mark.parametrize("own", [False, True])
def test_each_key_takes_its_share_of_what_nearer_keys_left(own: bool) -> None:
    model = variant(f"stick-breaking[own={str(own).lower()}]")
    query, key, value = inputs()
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[1, 2:5], valid[2, :4] = False, False
    mask = Mask(valid=valid, causal=True)
    expected = torch.zeros(3, 2, 7, 7, dtype=torch.float64)
    for b in range(3):
        for h in range(2):
            for i in range(7):
                stick = 1.0
                for j in reversed(range(i + own)):
                    if valid[b, j]:
                        share = 1 / (1 + math.exp(-(query[b, h, i] @ key[b, h, j]).item() / 2))
                        expected[b, h, i, j] = stick * share
                        stick *= 1 - share
    torch.testing.assert_close(model.weights(query, key, mask), expected)
    torch.testing.assert_close(model.weights(query, key, mask, slice(2, 5)), expected[:, :, 2:5])
    torch.testing.assert_close(model(query, key, value, mask), expected @ value)
    # fewer queries are the last ones
    torch.testing.assert_close(model(query[:, :, 4:], key, value, mask), (expected @ value)[:, :, 4:])


def test_thousands_of_shares_keep_finite_weights_and_gradients() -> None:
    model = StickBreaking(AttentionShape(heads=1, head_dim=4, max_length=4096, causal=True))
    scores = torch.full((4096,), -2.0)
    scores[1000] = 50.0
    scores.requires_grad_()
    weights = model.weigh(scores, None)
    share = 1 / (1 + math.exp(2))
    expected = share * (1 - share) ** torch.arange(40)
    torch.testing.assert_close(weights[-40:].flip(0), expected, rtol=1e-4, atol=0)
    # behind a share of one there is nothing left
    assert weights[:1000].max() < 1e-18 and abs(weights.sum().item() - 1) < 1e-3
    assert torch.autograd.grad(weights.square().sum(), scores)[0].isfinite().all()


def test_the_other_direction_is_refused() -> None:
    assert "from a query back" in str(
        variant("stick-breaking").supports(AttentionShape(heads=1, head_dim=4, max_length=8))
    )
