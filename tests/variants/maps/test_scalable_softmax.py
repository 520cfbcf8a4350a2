"""scalable-softmax against explicit powers."""

import pytest
import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask


def test_a_bias_of_zero_changes_no_bit_and_another_is_that_of_a_released_model() -> None:
    plain, biased = variant("scalable-softmax"), variant("scalable-softmax[bias=true]")
    query, key, value = inputs()
    assert torch.equal(biased(query, key, value, Mask(causal=True)), plain(query, key, value, Mask(causal=True)))
    mistral = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    released = mistral.MistralLarge4TextSoftmaxScaling(2).double()
    biased.bias.data.copy_(torch.tensor([0.7, -0.4]))
    released.scale.data.copy_(biased.slope)
    released.bias.data.copy_(biased.bias)
    # it counts from ln 1 at the first position, where this class has ln 2
    scaled = released(query.transpose(1, 2), torch.arange(7)[None] + 1, head_dim_first=False).transpose(1, 2)
    scores = (scaled @ key.transpose(-2, -1) / 2).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    # its logarithm is in float32
    torch.testing.assert_close(
        biased(query, key, value, Mask(causal=True)), scores.softmax(-1) @ value, rtol=1e-5, atol=1e-6
    )
