"""no-attention: a model with it treats each token by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, Unsupported
from attnbench.variants.sparse.no_attention import NoAttention


def heads(length: int) -> Tensor:
    return torch.randn(2, 2, length, 8, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("causal", [False, True])
def test_each_position_keeps_its_own_value_and_padding_is_zero(causal: bool) -> None:
    variant = NoAttention(AttentionShape(heads=2, head_dim=8, max_length=20, causal=causal))
    query, key, value = heads(9), heads(9), heads(9)
    valid = torch.arange(9) < torch.tensor([[9], [6]])
    assert torch.equal(variant(query, key, value, Mask(causal=causal)), value)
    padded = variant(query, key, value, Mask(valid, causal))
    assert torch.equal(padded[0], value[0]) and torch.equal(padded[1, :, :6], value[1, :, :6])
    assert (padded[1, :, 6:] == 0).all()
    weights = variant.weights(query, key, Mask(valid, causal), slice(3, 8))
    assert torch.equal(weights @ value, padded[:, :, 3:8])


def test_fewer_causal_queries_are_the_last_ones_and_other_lengths_are_refused() -> None:
    variant = NoAttention(AttentionShape(heads=2, head_dim=8, max_length=20, causal=True))
    value = heads(9)
    assert torch.equal(variant(heads(4), heads(9), value, Mask(causal=True)), value[:, :, 5:])
    for queries, keys, causal in ((9, 4, True), (4, 9, False), (9, 4, False)):
        with pytest.raises(Unsupported, match="expected one sequence"):
            variant(heads(queries), heads(keys), heads(keys), Mask(causal=causal))


def test_decoding_keeps_nothing() -> None:
    shape = AttentionShape(heads=2, head_dim=8, max_length=20, causal=True)
    output, state = NoAttention(shape).step(heads(1), heads(1), heads(1))
    assert torch.equal(output, heads(1))
    assert state is None and NoAttention(shape).state_bytes(shape) == 0
