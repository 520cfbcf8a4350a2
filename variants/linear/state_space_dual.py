"""Structured state space duality (SSD), the mixer of Mamba-2: linear attention with a decay of each token and head."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant


class StateSpaceDual(RecurrentVariant):
    """SSD of Mamba-2 over queries, keys and values: sums of k^T v whose tokens decay by one number of each head.

    A token's step t = softplus(w x + c) of its hidden state x is both how much it writes and how much it lets the state
    decay, by exp(-A t); A from U(1, 16), c so that the softplus starts between 0.001 and 0.1. Queries, keys and values
    are the C, B and x of the paper. The norm is one of all heads together, as in its code, so that their sizes matter.
    Its short convolution and output gate are wrappers here, and its skip D x is left to the residual of the model.
    Causal only.
    """

    equation: ClassVar = "S_i = exp(-A t_i) S_(i-1) + t_i k_i^T v_i; o_i = RMSNorm(q_i S_i); t_i = softplus(w x_i + c)"
    paper: ClassVar = (
        "Dao & Gu 2024, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State "
        "Space Duality (arXiv 2405.21060), sections 6 and 7"
    )

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape, impl=impl)
        self.norm = nn.Parameter(torch.ones(shape.heads, 1, shape.head_dim))
        self.step_size = nn.Linear(shape.hidden_width, shape.heads)
        self.log_slope = nn.Parameter(torch.empty(shape.heads).uniform_(1.0, 16.0).log())
        start = torch.empty(shape.heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        with torch.no_grad():
            # the bias whose softplus is drawn log-uniformly
            self.step_size.bias.copy_(start + (-torch.expm1(-start)).log())

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        steps = F.softplus(projected(self.step_size, hidden).transpose(1, 2))
        slope = self.log_slope.to(steps.dtype).exp()[:, None]
        return Terms(query, key, steps[..., None] * value, -slope * steps)

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        size = output.square().mean((1, 3), keepdim=True)
        return output * torch.rsqrt(size + 1e-5) * self.norm.to(output.dtype)
