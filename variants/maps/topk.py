"""Explicit top-k attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from ..contract import AttentionShape, Count, Mask, masked_softmax
from ..ops.dropout import WeightDropout
from .sparse_map import SparseMap


class TopK(SparseMap):
    """Softmax over the k highest scores of each query.

    Keys that tie with the k-th highest are all kept, so that the order of keys does not matter: a row may then have
    more than k weights. A row that may see at most k keys is plain softmax. Which keys are kept passes no gradient.
    Fused code computes in float32, where scores may tie that differ in float64.
    """

    equation: ClassVar = "P = softmax of the scores not below the k-th largest of their row, 0 elsewhere; O = P V"
    paper: ClassVar = "Zhao et al. 2019, Explicit Sparse Transformer: Concentrated Attention Through Explicit Selection"
    time: ClassVar = "O(N^2 (d + log k))"
    drops_inside: ClassVar = frozenset({"cpp"})

    def __init__(self, shape: AttentionShape, *, k: Count = 32, impl: Literal["auto", "eager", "cpp"] = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.k = k

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if not scores.numel():
            return scores
        # the choice passes no gradient; the scores that are kept do
        visible = scores.detach()
        if allowed is not None:
            visible = visible.masked_fill(~allowed, float("-inf"))
        # the k-th largest as a bound, and not the indices: ties at it are kept, whatever the order of the keys
        least = visible.topk(min(self.k, scores.shape[-1]), sorted=False).values.amin(-1, keepdim=True)
        kept = visible >= least
        return masked_softmax(scores, kept if allowed is None else kept & allowed)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, drop: WeightDropout | None) -> Tensor:
        from ..kernels.cpu.entmax import topk_attention

        return topk_attention(query, key, value, self.k, mask, drop)
