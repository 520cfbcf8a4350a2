"""Masks of other libraries, read back: each reading allows exactly the same pairs."""

import pytest
import torch

from attnbench.variants import Mask
from attnbench.variants.contract import Unsupported
from attnbench.variants.integrations.masks import boolean, read_mask

N = 7


def triangle(queries=N, keys=N):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def same_pairs(allowed, read):
    pairs = torch.zeros_like(allowed)
    own = read.mask.allowed(allowed.shape[2], read.keys, allowed.device)
    pairs[..., : read.keys] = True if own is None else own
    return torch.equal(pairs, allowed)


def test_a_causal_mask_and_padding_are_read_as_such():
    valid = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    for allowed, causal in (
        (triangle() & valid[:, None, None], True),
        (valid[:, None, None].expand(2, 1, N, N), False),
    ):
        read = read_mask(allowed, causal=True)
        assert read.mask.causal == causal and read.mask.bounds is None and read.keys == N
        assert torch.equal(read.mask.valid, valid)
        assert same_pairs(allowed, read)
    plain = read_mask(triangle()[None, None], causal=False)
    assert plain.mask == Mask(causal=True)


def test_a_single_query_is_causal_where_the_model_is():
    allowed = torch.ones(1, 1, 1, N, dtype=torch.bool)
    assert read_mask(allowed, causal=True).mask.causal
    assert not read_mask(allowed, causal=False).mask.causal


def test_free_places_of_a_cache_are_cut_off():
    allowed = torch.zeros(2, 1, 3, 16, dtype=torch.bool)
    allowed[..., :N] = triangle(3)
    read = read_mask(allowed, causal=True)
    assert read.keys == N and read.mask == Mask(causal=True)


@pytest.mark.parametrize("queries", [1, 3, N])
def test_a_sliding_window_becomes_bounds(queries):
    window = triangle() & ~triangle().tril(-3)
    allowed = window[None, None, N - queries :]
    padded = allowed & torch.tensor([0, 0, 0, 1, 1, 1, 1]).bool()
    for each in (allowed, padded):
        read = read_mask(each, causal=True)
        assert read.mask.causal and same_pairs(each, read)


def test_sequences_side_by_side_become_lengths():
    sequence = torch.tensor([0, 0, 0, 1, 2, 2, 2])
    same = sequence[:, None] == sequence
    for allowed in (same, same & triangle()):
        read = read_mask(allowed[None, None], causal=True)
        assert read.mask.lengths == (3, 1, 3) and same_pairs(allowed[None, None], read)


def test_other_masks_are_refused_or_exact():
    draw = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(200):
        allowed = torch.rand(2, 1, 4, 5, generator=draw) < 0.7
        try:
            read = read_mask(allowed, causal=True)
        except Unsupported as error:
            refused += 1
            assert "no interval" in str(error)
        else:
            assert same_pairs(allowed, read)
    assert 0 < refused < 200


def test_a_query_without_keys_is_exact_too():
    allowed = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    assert same_pairs(allowed, read_mask(allowed, causal=True))


def test_a_mask_to_be_added_hides_and_never_shifts():
    allowed = triangle()[None, None]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for lowest in (torch.finfo(dtype).min, float("-inf")):
            assert torch.equal(boolean(torch.zeros(1, 1, N, N, dtype=dtype).masked_fill(~allowed, lowest)), allowed)
    with pytest.raises(Unsupported, match="adds a bias"):
        boolean(torch.full((1, 1, N, N), -0.5))
    with pytest.raises(Unsupported, match="alike for all heads"):
        read_mask(torch.ones(1, 2, N, N, dtype=torch.bool), causal=True)
