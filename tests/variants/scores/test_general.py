"""general."""

from __future__ import annotations

import torch
from score_cases import DIM, HEADS, heads
from torch.nn import functional as F

from attnbench.variants import AttentionShape, Mask, build


@torch.no_grad()
def test_general_starts_at_scaled_dot_product_softmax() -> None:
    q, k, v = (x.float() for x in heads(6, 6))
    variant = build("general", AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    torch.testing.assert_close(variant(q, k, v, Mask()), F.scaled_dot_product_attention(q, k, v))
