"""Bilinear scores between queries and keys."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant, accumulator


class General(ScoredVariant):
    """Bilinear attention: q^T W k with one learned W per head.

    W, (heads, head_dim, head_dim), starts at I/sqrt(d), where the function is scaled dot-product softmax, so what
    training makes of W is all the difference. Over projected queries and keys W adds depth and no new functions.
    """

    simplex: ClassVar = True
    takes_bounds: ClassVar = True
    equation: ClassVar = "P = softmax(Q W K^T); O = P V"
    paper: ClassVar = (
        "Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation, eq. 8 (general)"
    )

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        # I / sqrt(d): at the start this is scaled dot-product softmax
        start = torch.eye(shape.head_dim) * shape.head_dim**-0.5
        self.weight = nn.Parameter(start.repeat(shape.heads, 1, 1))

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """q_i^T W k_j, (batch, heads, queries, keys)."""
        dtype = accumulator(query.dtype)
        return query.to(dtype) @ self.weight.to(dtype) @ key.to(dtype).transpose(-2, -1)
