"""The counts of a mask against the mask itself."""

import itertools

import pytest
import torch
from seeds import seed

from attnbench.variants.contract import Mask

CPU = torch.device("cpu")


def test_the_keys_that_a_query_may_see_are_counted() -> None:
    sizes = itertools.product((1, 5, 9), (1, 5, 9))
    for (queries, keys), *parts in itertools.product(sizes, *[(False, True)] * 3):
        causal, padded, bounded = parts
        draws = torch.Generator().manual_seed(seed(queries + 10 * keys))
        valid = torch.rand(3, keys, generator=draws) < 0.6 if padded else None
        bounds = torch.randint(-2, keys + 3, (3, queries, 2), generator=draws) if bounded else None
        mask = Mask(valid=valid, causal=causal, bounds=bounds)
        allowed = mask.allowed(queries, keys, CPU)
        whole = torch.ones(1, 1, queries, keys, dtype=torch.bool) if allowed is None else allowed
        expected = whole.expand(3, 1, queries, keys).sum(-1)[:, 0]
        assert torch.equal(mask.seen(queries, keys, CPU).expand(3, queries), expected), (queries, keys, parts)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_count_their_own_keys(causal: bool) -> None:
    mask = Mask(causal=causal, lengths=(3, 1, 4))
    allowed = mask.allowed(8, 8, CPU)
    assert allowed is not None
    assert torch.equal(mask.seen(8, 8, CPU), allowed.sum(-1)[:, 0])


def test_one_row_of_real_keys_counts_for_all_bounds() -> None:
    mask = Mask(valid=torch.arange(9)[None] % 2 == 0, bounds=torch.tensor([[[0, 4]], [[2, 9]], [[5, 5]]]))
    allowed = mask.allowed(1, 9, CPU)
    assert allowed is not None and mask.seen(1, 9, CPU).tolist() == allowed.sum(-1)[:, 0].tolist() == [[2], [4], [0]]
