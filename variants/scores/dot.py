"""Dot-product attention without the scale."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..contract import ScoredVariant, accumulator


class Dot(ScoredVariant):
    """Dot-product attention without the factor 1/sqrt(d).

    Scores grow with head_dim, so that the softmax saturates: the reason for which Vaswani et al. scale.
    """

    simplex: ClassVar = True
    takes_bounds: ClassVar = True
    equation: ClassVar = "P = softmax(Q K^T); O = P V"
    paper: ClassVar = (
        "Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation, eq. 8 (dot)"
    )

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """q_i·k_j, (batch, heads, queries, keys)."""
        # float32 at least: unscaled scores are the first to leave the range of float16
        return query.to(accumulator(query.dtype)) @ key.to(accumulator(key.dtype)).transpose(-2, -1)
