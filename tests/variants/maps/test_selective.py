"""selective against sums over the tokens before each query, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from map_cases import inputs, variant

from attnbench.variants.contract import AttentionShape, Mask, Unsupported


@pytest.mark.parametrize("padded", [False, True])
def test_later_queries_lose_what_the_first_head_gave_before(padded: bool) -> None:
    model, (query, key, value) = variant("selective"), inputs()
    valid = torch.ones(3, 7, dtype=torch.bool)
    if padded:
        valid[1, 2:5], valid[2, :2] = False, False
    mask = Mask(valid=valid if padded else None, causal=True)
    scores = query @ key.transpose(-2, -1) / 2
    expected = torch.zeros(3, 2, 7, 7, dtype=torch.float64)
    for b in range(3):
        real = [t for t in range(7) if valid[b, t]]
        for h in range(2):
            for i in real:
                for j in (j for j in real if j <= i):
                    before = [t for t in real if j < t < i and j != real[0]]
                    taken = sum(max(0.0, scores[b, 0, t, j].item()) for t in before)
                    expected[b, h, i, j] = math.exp(scores[b, h, i, j].item() - taken)
    expected = (expected / expected.sum(-1, keepdim=True)).nan_to_num(0.0)
    real = valid[:, None, :, None]
    found = model.weights(query, key, mask)
    torch.testing.assert_close(found.where(real, 0), expected)
    assert torch.equal(model.weights(query, key, mask, slice(2, 6)), found[:, :, 2:6])
    torch.testing.assert_close(model(query, key, value, mask).where(real, 0), expected @ value)


def test_other_sequences_and_directions_are_refused() -> None:
    model, (query, key, value) = variant("selective"), inputs()
    with pytest.raises(Unsupported, match="3 queries, 7 keys"):
        model(query[:, :, 4:], key, value, Mask(causal=True))
    assert "later queries" in str(model.supports(AttentionShape(heads=1, head_dim=4, max_length=8)))
