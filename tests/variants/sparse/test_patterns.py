"""Longformer, BigBird and Sparse Transformer against explicit masks, and that all patterns realise their sparsity."""

import pytest
import torch
from sparse_cases import HEADS, padded_mask, shape, tensors

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants.contract import Mask
from attnbench.variants.sparse.bigbird import BigBird
from attnbench.variants.sparse.longformer import Longformer
from attnbench.variants.sparse.sparse_transformer import Sparse


def longformer_pair(window, first):
    def sees(head, i, j, causal):
        seen = abs(i - j) <= window or j < first or (i < first and not causal)
        return seen and (j <= i or not causal)

    return sees


def strided_pair(stride):
    def sees(head, i, j, causal):
        return (abs(i - j) <= stride or (i - j) % stride == 0) and (j <= i or not causal)

    return sees


def fixed_pair(stride, summary):
    def sees(head, i, j, causal):
        return (i // stride == j // stride or j % stride >= stride - summary) and (j <= i or not causal)

    return sees


def bigbird_pair(variant):
    """Window and global blocks from the definition; the random ones as the variant drew them."""
    reach, block, first = variant.window_blocks // 2, variant.block, variant.global_blocks
    drawn = variant.plan[:, :, -variant.random_blocks :] if variant.random_blocks else variant.plan[:, :, :0]
    counts = variant.planned[:, :, -variant.random_blocks :] if variant.random_blocks else drawn

    def sees(head, i, j, causal):
        row, column = i // block, j // block
        random = drawn[head, row][counts[head, row]].tolist()
        return row < first or column < first or abs(row - column) <= reach or column in random

    return sees


def cases():
    for window, first in ((3, 2), (2, 0), (1, 5), (50, 1), (5, 60)):
        yield lambda s, w=window, g=first: (
            Longformer(s, window=w, global_tokens=g),
            longformer_pair(w, g),
        )
    for stride in (1, 2, 4, 7, 50):
        yield lambda s, n=stride: (Sparse(s, pattern="strided", stride=n), strided_pair(n))
    for stride, summary in ((4, 2), (5, 1), (3, 3), (50, 8)):
        yield lambda s, n=stride, c=summary: (Sparse(s, pattern="fixed", stride=n, summary=c), fixed_pair(n, c))


def bigbirds():
    for block, random, first, window in ((3, 2, 1, 3), (2, 3, 0, 1), (4, 0, 2, 5), (1, 3, 2, 3), (64, 3, 2, 3)):
        yield lambda s, b=block, r=random, g=first, w=window: BigBird(
            s, block=b, random_blocks=r, global_blocks=g, window_blocks=w
        )


def check_against_brute_force(variant, sees, causal):
    for length in (1, 2, 7, 12, 29, 40):
        query, key, value = tensors(length)
        seen = torch.tensor(
            [[[sees(h, i, j, causal) for j in range(length)] for i in range(length)] for h in range(HEADS)]
        )
        for mask in (Mask(None, causal), padded_mask(length, causal)):
            allowed = seen if mask.valid is None else seen & mask.valid[:, None, None, :]
            scores = torch.einsum("bhid,bhjd->bhij", query, key) / 2.0
            weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
            torch.testing.assert_close(variant(query, key, value, mask), weights @ value, atol=1e-12, rtol=0)
            torch.testing.assert_close(variant.weights(query, key, mask), weights, atol=1e-12, rtol=0)
            if length > 6:
                torch.testing.assert_close(variant.weights(query, key, mask, slice(3, 6)), weights[:, :, 3:6])
        pairs = length * (length + 1) / 2 if causal else length**2
        inside = seen.double().sum((1, 2)).mean().item()
        assert variant.density(shape(length, causal=causal)) == pytest.approx(inside / pairs, abs=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", list(cases()))
def test_equals_dense_attention_under_the_pattern(make, causal):
    variant, sees = make(shape(causal=causal))
    check_against_brute_force(variant.double(), sees, causal)


@pytest.mark.parametrize("make", list(bigbirds()))
def test_bigbird_equals_dense_attention_under_the_pattern(make):
    variant = make(shape())
    check_against_brute_force(variant, bigbird_pair(variant), causal=False)


def test_bigbird_draws_once_apart_from_window_and_global_blocks_and_for_each_head():
    first = BigBird(shape(320), block=8, random_blocks=3)
    drawn = first.plan[:, :, -3:]
    assert not torch.equal(drawn[0], drawn[1])
    assert first.planned[:, :, -3:].all()
    row = torch.arange(40)[None, :, None]
    assert ((drawn - row).abs() > 1).all() and (drawn >= 2).all()
    assert all(len(set(blocks.tolist())) == 3 for blocks in drawn.flatten(0, 1))


def test_bigbird_refuses_what_it_cannot_do():
    variant = BigBird(shape())
    assert variant.supports(shape(causal=True)) == "it has no causal form"
    query, key, value = tensors(8)
    with pytest.raises(Unsupported, match="no causal form"):
        variant(query, key, value, Mask(causal=True))
    with pytest.raises(SelectionError, match="expected window_blocks to be odd"):
        BigBird(shape(), window_blocks=2)


def test_a_summary_longer_than_the_block_is_refused():
    with pytest.raises(SelectionError, match="expected summary of at most stride 4, got 5"):
        Sparse(shape(), stride=4, summary=5)


def test_defaults_follow_the_papers_and_work_from_length_one():
    assert Longformer(shape(4096)).window == 256
    assert BigBird(shape(4096)).block == 64
    assert (Sparse(shape(16384)).stride, Sparse(shape(16384)).summary) == (128, 8)
    for make in (Longformer, BigBird, Sparse):
        query, key, value = tensors(1)
        torch.testing.assert_close(make(shape(1))(query, key, value, Mask()), value)
