"""sigmoid against its formula."""

import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask


def test_sigmoid_biases_by_minus_log_of_the_keys() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    found = variant("sigmoid").weights(query, key, Mask(causal=True))
    for i in range(7):
        expected = 1 / (1 + (i + 1) * torch.exp(-scores[:, :, i, : i + 1]))
        torch.testing.assert_close(found[:, :, i, : i + 1], expected)
    zero = torch.zeros(1, 2, 500, 4)
    start = variant("sigmoid", False).float().weights(zero, zero, Mask())
    assert start.sum(-1).sub(1).abs().max() < 0.01, "equal scores start with sums near one"
    fixed = variant("sigmoid[bias=-2.0]", False).weights(query, key, Mask())
    torch.testing.assert_close(fixed, torch.sigmoid(scores - 2))
