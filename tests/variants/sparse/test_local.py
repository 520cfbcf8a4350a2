"""Local attention against a dense float64 softmax under an explicit block mask, and against `local-attention`."""

import pytest
import torch
from sparse_cases import padded_mask, shape, tensors

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask
from attnbench.variants.sparse.local import Local

BLOCKS = [(4, 6), (4, 4), (5, 0), (3, 40), (1, 2)]


def block_pattern(length, block, flange, causal):
    """Boolean (queries, keys), pair by pair from the definition."""
    seen = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        start = i // block * block
        for j in range(length):
            inside = start - flange <= j < start + block + flange
            seen[i, j] = inside and (j <= i or not causal)
    return seen


def dense(query, key, value, seen, variant):
    """Softmax over the pairs in `seen`, with the vectors of relative distance added one by one."""
    length, reach = query.shape[2], 0
    keys = key[:, :, None].expand(-1, -1, length, -1, -1)
    values = value[:, :, None].expand(-1, -1, length, -1, -1)
    if variant.positions is not None:
        reach = variant.positions.reach
        distance = (torch.arange(length) - torch.arange(length)[:, None]).clamp(-reach, reach) + reach
        keys = keys + variant.positions.key_table[distance]
        values = values + variant.positions.value_table[distance]
    scores = torch.einsum("bhid,bhijd->bhij", query, keys) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bhijd->bhid", weights, values), weights


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block", "flange"), BLOCKS)
def test_equals_dense_attention_under_the_block_mask(block, flange, causal, relative):
    variant = Local(shape(causal=causal), query_block=block, flange=flange, relative=relative).double()
    for length in (1, 2, 7, 12, 23, 40):
        query, key, value = tensors(length)
        for mask in (Mask(None, causal), padded_mask(length, causal)):
            seen = block_pattern(length, block, flange, causal)
            if mask.valid is not None:
                seen = seen & mask.valid[:, None, None, :]
            expected, weights = dense(query, key, value, seen, variant)
            torch.testing.assert_close(variant(query, key, value, mask), expected, atol=1e-12, rtol=0)
            torch.testing.assert_close(variant.weights(query, key, mask), weights, atol=1e-12, rtol=0)
            if length > 6:
                rows = slice(3, 6)
                torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block", "flange"), BLOCKS)
def test_density_is_the_share_of_pairs_that_get_weight(block, flange, causal):
    for length in (1, 5, 24, 37):
        variant = Local(shape(length), query_block=block, flange=flange)
        query, key, _ = tensors(length, batch=1, dtype=torch.float32)
        nonzero = (variant.weights(query, key, Mask(None, causal)) > 0).sum().item() / 2
        pairs = length * (length + 1) / 2 if causal else length**2
        assert variant.density(shape(length, causal=causal)) == pytest.approx(nonzero / pairs, abs=1e-12)


def test_a_max_relative_below_the_span_is_refused_with_the_reason():
    Local(shape(), query_block=8, flange=4, max_relative=12)
    with pytest.raises(SelectionError, match=r"max_relative of at least 12 \(query_block 8 \+ flange 4\), got 11"):
        Local(shape(), query_block=8, flange=4, max_relative=11)


def test_defaults_are_the_papers_and_shrink_with_the_length():
    assert [(v.query_block, v.flange) for v in (Local(shape(n)) for n in (8192, 2048, 1024, 4, 1))] == [
        (256, 256),
        (256, 256),
        (128, 128),
        (1, 1),
        (1, 1),
    ]
