"""sinkhorn against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools

import pytest
import torch
from sorting_cases import HEADS, LONGEST, WIDTH, draw, released, sinkhorn_of
from torch import Tensor

from attnbench.variants.contract import Mask
from attnbench.variants.ops.chunks import cut
from attnbench.variants.sparse.sinkhorn import Sinkhorn, sinkhorn


def explicit_sinkhorn(variant: Sinkhorn, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """One sequence, (heads, n, d), block by block and row by row."""
    n, size = key.shape[1], variant.block
    blocks = [list(range(s, min(s + size, n))) for s in range(0, n, size)]
    pooled = torch.stack([key[:, : b[0] + 1].mean(1) if causal else key[:, b].mean(1) for b in blocks], 1)
    net = variant.sorter
    logits = ((pooled @ net.w1 + net.b1).relu() @ net.w2 + net.b2)[..., : len(blocks)] / variant.temperature
    sorting = logits.exp()
    if causal:
        sorting = sorting.tril(-1)
    for _ in range(variant.iterations):
        rows = sorting.sum(-1, keepdim=True)
        sorting = sorting / rows.where(rows > 0, 1)
        columns = sorting.cumsum(-2) if causal else sorting.sum(-2, keepdim=True)
        sorting = sorting / columns.where(columns > 0, 1)
    output = torch.zeros_like(query)
    for u, h in itertools.product(range(len(blocks)), range(query.shape[0])):
        moved_keys, moved_values = [], []
        for offset in range(size):
            sources = [w for w, b in enumerate(blocks) if offset < len(b) and (w < u or not causal)]
            if sources:
                at = [blocks[w][offset] for w in sources]
                moved_keys.append(sorting[h, u, sources] @ key[h, at])
                moved_values.append(sorting[h, u, sources] @ value[h, at])
        for i in blocks[u]:
            local = [j for j in blocks[u] if j <= i or not causal]
            keys, values = (torch.stack([*m, *x[h, local]]) for m, x in ((moved_keys, key), (moved_values, value)))
            output[h, i] = (keys @ query[h, i] / WIDTH**0.5).softmax(-1) @ values
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 13, 30, 48])
def test_sinkhorn_equals_the_explicit_blocks(length: int, causal: bool) -> None:
    variant = sinkhorn_of(causal=causal)
    query, key, value = draw(length, length, length)
    output = variant(query, key, value, Mask(causal=causal))
    for b in range(2):
        expected = explicit_sinkhorn(variant, query[b], key[b], value[b], causal)
        torch.testing.assert_close(output[b], expected, rtol=1e-8, atol=1e-10)


def test_sinkhorn_normalisation_equals_sinkhorn_transformer() -> None:
    theirs = released("sinkhorn_transformer")
    logits = torch.randn(3, HEADS, 7, 7, dtype=torch.float64)
    ours = sinkhorn(logits, torch.ones(3, 7, 7, dtype=torch.bool), 5, causal=False)
    expected = theirs.sinkhorn_sorting_operator(logits.flatten(0, 1), n_iters=5).unflatten(0, (3, HEADS))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_sinkhorn_equals_sinkhorn_transformer_where_keys_are_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given its sorting logits, a relevance of mean queries to mean keys; it uses the sorted keys as sorted values."""
    theirs = released("sinkhorn_transformer")
    monkeypatch.setattr(theirs, "sample_gumbel", lambda shape, *_: torch.zeros(shape))
    attention = theirs.SinkhornAttention(
        6, HEADS * WIDTH, WIDTH, HEADS, LONGEST, temperature=0.75, non_permutative=False, sinkhorn_iter=7
    )
    query, key, value = draw(48, 48, 48)

    def relevance(blocks: Tensor, live: Tensor, causal: bool) -> Tensor:
        means = cut(query, 6, 2).mean(3) @ blocks.mean(3).mT / WIDTH**0.5
        return (means.relu() + 1e-6).log() / 0.75

    variant = sinkhorn_of(block=6)
    monkeypatch.setattr(variant, "sort_logits", relevance)
    expected = attention(query, key, key)
    torch.testing.assert_close(variant(query, key, key, Mask()), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(variant(query, key, value, Mask()), attention(query, key, value), atol=1e-2)


def test_sinkhorn_adds_gumbel_noise_only_in_training_and_only_when_asked() -> None:
    inputs = draw(20, 20, 20)
    for gumbel, training in itertools.product((False, True), (False, True)):
        variant = sinkhorn_of(gumbel=gumbel).train(training)
        repeats = torch.equal(variant(*inputs, Mask()), variant(*inputs, Mask()))
        assert repeats == (not (gumbel and training))
