"""relu-squared against its formula."""

import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask


def test_relu_squared_divides_by_the_keys_it_may_see() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    squares = scores.clamp(min=0) ** 2
    torch.testing.assert_close(variant("relu-squared", False).weights(query, key, Mask()), squares / 7)
    torch.testing.assert_close(variant("relu-squared[power=0]", False).weights(query, key, Mask()), squares)
    seen = torch.arange(1, 8, dtype=torch.float64)[:, None]
    halved = variant("relu-squared[power=0.5]").weights(query, key, Mask(causal=True))
    torch.testing.assert_close(halved, squares.tril() / seen.sqrt())
