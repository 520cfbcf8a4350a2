"""feedforward: its dropout and its density."""

from __future__ import annotations

import torch
from score_cases import heads, make

from attnbench.variants import AttentionShape, Mask, build


@torch.no_grad()
def test_dropout_of_feedforward_drops_a_key_whole_and_for_all_queries() -> None:
    variant = make("feedforward", dropout=0.4)
    q, k, v = heads(6, 6)
    pooled = variant(q, k, v, Mask())
    assert torch.equal(pooled, pooled[:, :, :1].expand_as(pooled))
    assert not torch.equal(pooled, variant(q, k, v, Mask()))
    # the first query sees one key, with weight 1: dropped, or scaled by 1 / 0.6
    first = torch.stack([variant(q, k, v, Mask(causal=True))[:, :, 0] / v[:, :, 0] for _ in range(50)])
    torch.testing.assert_close(first.unique().sort().values[[0, -1]], torch.tensor([0.0, 1 / 0.6]).double())
    assert torch.equal(first == 0, (first == 0).all(-1, keepdim=True).expand_as(first))


def test_feedforward_declares_that_it_scores_each_key_once() -> None:
    shape = AttentionShape(heads=1, head_dim=4, max_length=9)
    causal = AttentionShape(heads=1, head_dim=4, max_length=9, causal=True)
    variant = build("feedforward", shape)
    assert variant.density(shape) == 9 / 81
    assert variant.density(causal) == 9 / 45
