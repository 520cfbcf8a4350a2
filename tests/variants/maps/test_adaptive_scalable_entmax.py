"""asentmax against its formula."""

import math

import torch
from map_cases import inputs, variant

from attnbench.variants.contract import Mask
from attnbench.variants.ops.entmax import entmax, entmax15


def test_asentmax_scales_by_query_and_length() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    logs = torch.log(torch.arange(2, 9, dtype=torch.float64))[:, None]
    past = torch.ones(7, 7, dtype=torch.bool).tril()

    free = variant("asentmax[form=head]")
    assert (free.beta >= 0.1).all() and (free.beta <= 1).all() and free.gamma.shape == (2,)
    factor = 1 + free.beta[:, None, None] * logs ** free.gamma[:, None, None]
    expected = entmax15((scores * factor).masked_fill(~past, -math.inf))
    torch.testing.assert_close(free.weights(query, key, Mask(causal=True)), expected)

    own = variant("asentmax[alpha=2,delta=0.5,gamma_range=3]")
    beta = torch.log1p(torch.einsum("bhqd,hd->bhq", query, own.beta).exp())[..., None]
    gamma = 3 * torch.einsum("bhqd,hd->bhq", query, own.gamma).tanh()[..., None]
    expected = entmax((scores * (0.5 + beta * logs**gamma)).masked_fill(~past, -math.inf), 2.0)
    torch.testing.assert_close(own.weights(query, key, Mask(causal=True)), expected)
    torch.testing.assert_close(own.weights(query, key, Mask(causal=True), slice(2, 4)), expected[:, :, 2:4])
