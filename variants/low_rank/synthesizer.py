"""Synthesizer: weights made without comparing queries with keys."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant, Unsupported, Width, accumulator
from ..ops.per_head_mlp import HeadwiseMap


class Synthesizer(ScoredVariant):
    """Softmax of logits made from each query alone, or learned as a table; dense by nature.

    `variant`: `dense`, a two-layer map of the query, d -> d -> max_length, for each head; `random`, a table
    max_length x max_length for each head; `factorised-dense`, two such maps to a and b logits with a b >= max_length,
    whose products give position j = (j // b, j % b); `factorised-random`, the table as a product of two of `rank`
    columns.
    The key projection of the model is not used, and by the random forms neither is that of the query.
    A longer sequence than `max_length` raises Unsupported.
    """

    simplex: ClassVar = True
    equation: ClassVar = "P = softmax(W2 relu(W1 q + b1) + b2), or softmax(R), or softmax(R1 R2^T); O = P V"
    paper: ClassVar = "Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, section 3"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        variant: Literal["dense", "random", "factorised-dense", "factorised-random"] = "dense",
        rank: Width = 8,
    ):
        super().__init__(shape)
        heads, width, longest = shape.heads, shape.head_dim, shape.max_length
        self.variant = variant
        self.ignores = frozenset({"key"} if variant.endswith("dense") else {"query", "key"})
        if variant == "random":
            self.table = nn.Parameter(torch.randn(heads, longest, longest))
        elif variant == "factorised-random":
            self.left = nn.Parameter(torch.randn(heads, longest, rank) * rank**-0.25)
            self.right = nn.Parameter(torch.randn(heads, longest, rank) * rank**-0.25)
        elif variant == "dense":
            self.logits = HeadwiseMap(heads, width, longest)
        else:
            # near the square root: the two maps then have the fewest outputs whose products cover the length
            columns = math.isqrt(longest - 1) + 1
            self.columns = columns
            self.coarse = HeadwiseMap(heads, width, -(-longest // columns))
            self.fine = HeadwiseMap(heads, width, columns)

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        queries, keys, longest = query.shape[2], key.shape[2], self.shape.max_length
        dtype = accumulator(query.dtype)
        if self.variant == "dense":
            self._check(keys)
            scores: Tensor = self.logits(query.to(dtype), keys)
        elif self.variant == "factorised-dense":
            self._check(keys)
            coarse, fine = self.coarse(query.to(dtype)), self.fine(query.to(dtype))
            scores = (coarse[..., :, None] * fine[..., None, :]).flatten(-2)[..., :keys]
        else:
            # rows of the table are positions of queries, columns positions of keys
            self._check(max(keys, first + queries))
            # rows before the first key see nothing, whatever their logits
            at = torch.arange(first, first + queries, device=query.device).clamp(min=0, max=longest - 1)
            if self.variant == "random":
                scores = self.table.to(dtype)[:, at, :keys]
            else:
                scores = self.left.to(dtype)[:, at] @ self.right.to(dtype)[:, :keys].transpose(-2, -1)
            # the table knows no batch
            scores = scores.expand(query.shape[0], -1, -1, -1)
        return scores

    def _check(self, length: int) -> None:
        longest = self.shape.max_length
        if length > longest:
            raise Unsupported(f"expected at most {longest} positions, got {length}: build synthesizer for more")
