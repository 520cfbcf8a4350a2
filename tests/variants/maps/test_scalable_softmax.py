"""scalable-softmax against explicit powers."""

import pytest
import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask


@pytest.mark.parametrize("causal", [False, True])
def test_scalable_softmax_raises_the_number_of_keys_to_the_scores(causal: bool) -> None:
    model = variant("scalable-softmax", causal)
    assert model.slope.shape == (2,) and (model.slope - 1).abs().max() < 0.1
    query, key, _ = inputs()
    valid = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    found = model.weights(query, key, Mask(valid=valid, causal=causal))
    for b, length in enumerate((7, 4, 2)):
        for h in range(2):
            for i in range(length):
                last, n = (i + 1, i + 2) if causal else (length, length)
                scores = (query[b, h, i] @ key[b, h, :last].T / 2).tolist()
                powers = [n ** (model.slope[h].item() * s) for s in scores]
                assert found[b, h, i, :last].tolist() == pytest.approx([p / sum(powers) for p in powers])
