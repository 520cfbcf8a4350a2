"""dot."""

from __future__ import annotations

import torch
from score_cases import heads, make
from torch.nn import functional as F

from attnbench.variants import Mask


@torch.no_grad()
def test_dot_is_the_softmax_of_pytorch_without_its_scale() -> None:
    q, k, v = heads(6, 6)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(make("dot")(q, k, v, Mask(causal=True)), expected)
