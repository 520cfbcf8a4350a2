"""reformer against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools

import pytest
import torch
from sorting_cases import HEADS, WIDTH, build, draw, reformer, released, shape
from torch import Tensor

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.sparse.reformer import Reformer


def explicit_chunks(variant: Reformer, query: Tensor) -> list[list[int]]:
    """Chunk of each token of one sequence and head (n, d), per round, by sorting (hash, position) pairs."""
    n = len(query)
    buckets = 2 * -(-n // (2 * variant.bucket))
    rounds = []
    for rotation in variant.rotations:
        turned = query @ rotation[:, : buckets // 2]
        hashes = torch.cat([turned, -turned], -1).argmax(-1).tolist()
        order = sorted(range(n), key=lambda i: (hashes[i], i))
        rounds.append([order.index(i) // variant.bucket for i in range(n)])
    return rounds


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hashes", [1, 3])
@pytest.mark.parametrize("length", [1, 3, 9, 31, 48])
def test_reformer_is_softmax_over_the_union_of_its_rounds(length: int, hashes: int, causal: bool) -> None:
    variant = reformer(causal=causal, hashes=hashes)
    query, key, value = draw(length, length, length)
    mask = Mask(causal=causal)
    output, weights = variant(query, key, value, mask), variant.weights(query, key, mask)
    for b, h in itertools.product(range(2), range(HEADS)):
        rounds = explicit_chunks(variant, query[b, h])
        unit = query[b, h] / query[b, h].norm(dim=-1, keepdim=True)
        for i in range(length):
            union = {j for at in rounds for j in range(length) if at[i] - at[j] in (0, 1)}
            union = {j for j in union if not causal or j <= i}
            # itself only where there is nothing else
            seen = sorted(union - {i}) or [i]
            expected = torch.zeros(length, dtype=torch.float64)
            expected[seen] = (unit[seen] @ query[b, h, i] / WIDTH**0.5).softmax(-1)
            torch.testing.assert_close(weights[b, h, i], expected, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(output[b, h, i], expected @ value[b, h], rtol=1e-9, atol=1e-12)
    rows = slice(length // 2, length)
    part = variant.weights(query, key, mask, rows)
    torch.testing.assert_close(part, weights[:, :, rows], rtol=1e-12, atol=1e-14)


def test_reformer_puts_near_vectors_into_one_chunk_more_often_than_chance() -> None:
    variant = Reformer(AttentionShape(heads=1, head_dim=WIDTH, max_length=512), bucket=16, hashes=2).double()
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1, 1, 256, 1, WIDTH, generator=generator, dtype=torch.float64)
    noise = 0.05 * torch.randn(1, 1, 256, 2, WIDTH, generator=generator, dtype=torch.float64)
    query = (base + noise).flatten(2, 3)
    seen = variant.weights(query, query, Mask())[0, 0] > 0
    assert float(seen.double().mean()) < 2 * 2 * 16 / 512
    assert float(seen[1::2, ::2].diagonal().double().mean()) > 0.9


def test_reformer_uses_queries_as_keys_and_the_same_rotations_in_each_pass() -> None:
    variant = reformer()
    inputs = [x.requires_grad_() for x in draw(30, 30, 30)]
    query, key, value = inputs
    output = variant(query, key, value, Mask())
    assert torch.equal(output, variant(query, 7 - key, value, Mask()))
    gradients = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
    assert {n for n, g in zip(("query", "key", "value"), gradients, strict=True) if g is None} == variant.ignores
    assert torch.equal(variant.rotations, reformer().rotations)
    assert variant.state_bytes(shape(causal=True)) is None
    with pytest.raises(Unsupported, match="sorts all tokens anew"):
        variant.step(query, key, value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hashes", [1, 3])
def test_reformer_equals_reformer_pytorch_outside_each_first_chunk(hashes: int, causal: bool) -> None:
    """Theirs lets the first chunk of a round look back at the last one of the round before; the paper does not."""
    theirs = released("reformer_pytorch")
    variant = reformer(causal=causal, hashes=hashes)
    query, key, value = draw(48, 48, 48)
    order = variant.order(query, None)
    attention = theirs.LSHAttention(bucket_size=4, n_hashes=hashes, causal=causal, allow_duplicate_attention=False)

    def same_hashes(count: int, vectors: Tensor, **_: object) -> Tensor:
        rotated = torch.einsum("btd,rdk->brtk", vectors, variant.rotations[..., : count // 2])
        buckets = torch.cat([rotated, -rotated], -1).argmax(-1) + count * torch.arange(hashes)[:, None]
        return buckets.flatten(1)

    attention.hash_vectors = same_hashes
    expected = attention(query.flatten(0, 1), value.flatten(0, 1))[0].unflatten(0, (2, HEADS))
    compared = (order.rank >= 4).all(2)
    assert int(compared.sum()) > 80
    ours = variant(query, key, value, Mask(causal=causal))
    torch.testing.assert_close(ours[compared], expected[compared], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours[~compared], expected[~compared], atol=1e-3)


either = pytest.mark.parametrize("name", ["reformer", "sinkhorn"])


@either
def test_longer_sequences_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        build(name, causal=False)(*draw(49, 49, 49), Mask())
