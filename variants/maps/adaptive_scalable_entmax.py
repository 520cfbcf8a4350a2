"""Adaptive-scalable entmax (ASEntmax): entmax whose temperature follows the number of keys."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, ScoredVariant, SelectionError, accumulator, repeat_heads
from ..ops.entmax import entmax
from ..ops.log_length import log_length


class ASEntmax(ScoredVariant):
    """Adaptive-scalable entmax: scores times delta + beta (ln n)^gamma, then alpha-entmax.

    The paper computes beta and gamma from the token's hidden state, which a variant over projected heads does not see.
    `form=query`, the default, computes them from the head's own query instead, a linear function of the same state:
    beta = softplus(w q), gamma = gamma_range tanh(v q), with w and v per head. `form=head` is the paper's second form:
    beta and gamma are free numbers per head, started at U(0.1, 1) and N(0, 0.1). n as in `scalable-softmax`.
    """

    equation: ClassVar = "P = entmax((delta + beta ln(n)^gamma) Q K^T / sqrt(d), alpha); O = P V"
    paper: ClassVar = "Vasylenko, Pitorro, Martins & Treviso 2025, Long-Context Generalization with Sparse Attention"
    time: ClassVar = "O(N^2 d) and a solve per query"
    simplex: ClassVar = True
    takes_bounds: ClassVar = True

    def __init__(
        self,
        shape: AttentionShape,
        *,
        form: Literal["query", "head"] = "query",
        alpha: Annotated[float, Range(1, 1e6)] = 1.5,
        delta: Annotated[float, Range(-100, 100)] = 1.0,
        gamma_range: Annotated[float, Range(0, 100)] = 2.0,
    ):
        super().__init__(shape)
        if not 1.0 <= alpha < float("inf"):
            raise SelectionError(f"variant 'asentmax': expected alpha of 1 or more, got {alpha}")
        self.form, self.alpha, self.delta, self.gamma_range = form, alpha, delta, gamma_range
        # a temperature made of the query would see the dimensions of a bias too
        self.maps_products = form == "head"
        if form == "query":
            # the start of a linear layer of PyTorch from head_dim to one
            bound = 1.0 / math.sqrt(shape.head_dim)
            self.beta = nn.Parameter(torch.empty(shape.heads, shape.head_dim).uniform_(-bound, bound))
            self.gamma = nn.Parameter(torch.empty(shape.heads, shape.head_dim).uniform_(-bound, bound))
        else:
            self.beta = nn.Parameter(torch.empty(shape.heads).uniform_(0.1, 1.0))
            self.gamma = nn.Parameter(torch.empty(shape.heads).normal_(0.0, 0.1))

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        # as `ScoredVariant.weights`, but for the temperature, which is made of the query
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device, rows)
        query = (query if rows is None else query[:, :, rows]).to(accumulator(query.dtype))
        scores = self.score(query, repeat_heads(key, query.shape[1]))
        beta, gamma = self._temperature(query)
        factor = self.delta + beta * log_length(scores, allowed, self.shape.causal) ** gamma
        return self.weigh(scores * factor, allowed)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """Weights of scores that have their temperature already."""
        return entmax(scores, self.alpha, allowed=allowed)

    def _temperature(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """beta and gamma, (batch, heads, queries, 1) or (heads, 1, 1)."""
        beta, gamma = self.beta.to(query.dtype), self.gamma.to(query.dtype)
        if self.form == "head":
            # free numbers, alike for all queries of a head
            return beta[:, None, None], gamma[:, None, None]
        # softplus keeps beta positive, tanh keeps the exponent within its range
        return F.softplus(query @ beta[..., None]), self.gamma_range * torch.tanh(query @ gamma[..., None])
