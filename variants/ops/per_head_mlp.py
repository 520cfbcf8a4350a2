"""A small network with weights of its own for each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class HeadwiseMap(nn.Module):
    """W2 relu(W1 x + b1) + b2 with weights of its own for each head: (batch, heads, n, width) -> (…, n, out)."""

    def __init__(self, heads: int, width: int, out: int):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(heads, width, width))
        self.b1 = nn.Parameter(torch.zeros(heads, 1, width))
        self.w2 = nn.Parameter(torch.empty(heads, width, out))
        self.b2 = nn.Parameter(torch.zeros(heads, 1, out))
        # Xavier for each head by itself: fan-in and fan-out are those of one head
        bound = math.sqrt(6 / (2 * width))
        nn.init.uniform_(self.w1, -bound, bound)
        bound = math.sqrt(6 / (width + out))
        # no bias drawn: both start at zero
        nn.init.uniform_(self.w2, -bound, bound)

    def forward(self, x: Tensor, count: int | None = None) -> Tensor:
        """The first `count` outputs only, all where None."""
        w1, b1, w2, b2 = (p.to(x.dtype) for p in (self.w1, self.b1, self.w2, self.b2))
        # outputs that are not asked for are cut from the weights, not from the result
        return (x @ w1 + b1).relu() @ w2[..., :count] + b2[..., :count]
