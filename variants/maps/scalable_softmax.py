"""Scalable softmax: the temperature follows the number of keys, so that attention does not flatten."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant, masked_softmax
from ..ops.log_length import log_length


class ScalableSoftmax(ScoredVariant):
    """Scalable softmax: scores times s ln n, n the number of keys, s learned per head.

    Where attention is causal, n is the number of keys that the query may see plus one, i + 2 at position i from 0, as
    the code of ASEntmax has it; elsewhere it is the number of keys. s starts at N(1, 0.01).
    """

    equation: ClassVar = "P = softmax(s ln(n) Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Nakanishi 2025, Scalable-Softmax Is Superior for Attention"
    simplex: ClassVar = True
    maps_products = True
    grouped: ClassVar = True
    takes_bounds: ClassVar = True

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.heads).normal_(1.0, 0.01))

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        # one s for each head; n is of each query, since causal rows and padding differ in it
        factor = self.slope.to(scores.dtype)[:, None, None] * log_length(scores, allowed, self.shape.causal)
        return masked_softmax(scores * factor, allowed)
