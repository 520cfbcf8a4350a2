"""Adaptive-scalable entmax (ASEntmax): entmax whose temperature follows the number of keys."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, SelectionError, accumulator
from ..ops.entmax import entmax
from ..ops.log_length import log_length
from .sparse_map import SparseMap


class ASEntmax(SparseMap):
    """Adaptive-scalable entmax: scores times delta + beta (ln n)^gamma, then alpha-entmax.

    The paper computes beta and gamma from the token's hidden state, which a variant over projected heads does not see.
    `form=query`, the default, computes them from the head's own query instead, a linear function of the same state:
    beta = softplus(w q), gamma = gamma_range tanh(v q), with w and v per head. `form=head` is the paper's second form:
    beta and gamma are free numbers per head, started at U(0.1, 1) and N(0, 0.1). n as in `scalable-softmax`. The factor
    is one number a query, so it multiplies the query, and the kernels are those of `entmax`.
    """

    equation: ClassVar = "P = entmax((delta + beta ln(n)^gamma) Q K^T / sqrt(d), alpha); O = P V"
    paper: ClassVar = "Vasylenko, Pitorro, Martins & Treviso 2025, Long-Context Generalization with Sparse Attention"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        form: Literal["query", "head"] = "query",
        alpha: Annotated[float, Range(1, 1e6)] = 1.5,
        delta: Annotated[float, Range(-100, 100)] = 1.0,
        gamma_range: Annotated[float, Range(0, 100)] = 2.0,
        impl: Literal["auto", "eager", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape, impl=impl)
        if not 1.0 <= alpha < float("inf"):
            raise SelectionError(f"variant 'asentmax': expected alpha of 1 or more, got {alpha}")
        self.form, self.fixed_alpha, self.delta, self.gamma_range = form, float(alpha), delta, gamma_range
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

    def scaled(self, query: Tensor, keys: int, mask: Mask) -> Tensor:
        wide = query.to(accumulator(query.dtype))
        beta, gamma = self._temperature(wide)
        return wide * (self.delta + beta * log_length(mask, wide, keys, self.shape.causal) ** gamma)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """Weights of scores that have their temperature already."""
        assert self.fixed_alpha is not None
        return entmax(scores, self.fixed_alpha, allowed=allowed)

    def _temperature(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """beta and gamma, (batch, heads, queries, 1) or (heads, 1, 1)."""
        beta, gamma = self.beta.to(query.dtype), self.gamma.to(query.dtype)
        if self.form == "head":
            # free numbers, alike for all queries of a head
            return beta[:, None, None], gamma[:, None, None]
        # softplus keeps beta positive, tanh keeps the exponent within its range
        return F.softplus(query @ beta[..., None]), self.gamma_range * torch.tanh(query @ gamma[..., None])
