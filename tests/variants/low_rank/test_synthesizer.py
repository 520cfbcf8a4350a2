"""synthesizer against explicit logits in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from low_rank_cases import FORMS, HEADS, built, draw
from torch import Tensor

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import Mask
from attnbench.variants.low_rank.synthesizer import Synthesizer


def explicit_logits(variant: Synthesizer, query: Tensor, keys: int, row: int) -> Tensor:
    """Logits of one query (heads, d) at position `row`."""

    def two_layers(net: torch.nn.Module) -> Tensor:
        hidden = torch.relu(torch.einsum("hd,hde->he", query, net.w1) + net.b1[:, 0])
        return torch.einsum("he,heo->ho", hidden, net.w2) + net.b2[:, 0]

    if variant.variant == "dense":
        return two_layers(variant.logits)[:, :keys]
    if variant.variant == "random":
        return variant.table[:, row, :keys]
    if variant.variant == "factorised-random":
        return torch.einsum("hr,hnr->hn", variant.left[:, row], variant.right)[:, :keys]
    coarse, fine = two_layers(variant.coarse), two_layers(variant.fine)
    return torch.stack([coarse[:, j // fine.shape[1]] * fine[:, j % fine.shape[1]] for j in range(keys)], -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(12, 12), (1, 1), (5, 12), (48, 48)])
def test_synthesizer_equals_the_explicit_logits(form: str, causal: bool, queries: int, keys: int) -> None:
    variant = built(Synthesizer, variant=form)
    query, key, value = draw(queries, keys, keys)
    valid = torch.rand(2, keys, generator=torch.Generator().manual_seed(2)) > 0.3
    mask = Mask(valid, causal)
    output, weights = variant(query, key, value, mask), variant.weights(query, key, mask)
    offset = keys - queries if causal else 0
    for b, i in itertools.product(range(2), range(queries)):
        seen = valid[b] & (torch.arange(keys) <= i + offset) if causal else valid[b]
        logits = explicit_logits(variant, query[b, :, i], keys, i + offset)
        expected = torch.zeros(HEADS, keys, dtype=torch.float64)
        if seen.any():
            expected[:, seen] = logits[:, seen].softmax(-1)
        torch.testing.assert_close(weights[b, :, i], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(output[b, :, i], (expected[:, None] @ value[b])[:, 0], rtol=1e-9, atol=1e-12)
    rows = slice(queries // 2, queries)
    torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows], rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_synthesizer_refuses_positions_beyond_its_logits(form: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        built(Synthesizer, variant=form)(*draw(49, 49, 49), Mask())
