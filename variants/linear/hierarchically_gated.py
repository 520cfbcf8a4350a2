"""HGRN-2: a gated linear recurrence whose key is what its forget gate lets go."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Range
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant


class HierarchicallyGated(RecurrentVariant):
    """HGRN-2: a state that decays by a forget gate f of each token and dimension, and is written along 1 - f.

    f = l + (1 - l) sigmoid(k) of the projected key, so no projection is added; the query goes through SiLU. The paper
    learns a lower bound l of each layer and dimension, zero in the first layer; here it is one number, `lower_bound`.
    The norm is one of all heads together, as in released code. Causal only.
    """

    takes_hidden = False
    equation: ClassVar = (
        "S_i = diag(f_i) S_(i-1) + (1 - f_i)^T v_i; o_i = RMSNorm(SiLU(q_i) S_i); f_i = l + (1 - l) sigmoid(k_i)"
    )
    paper: ClassVar = "Qin et al. 2024, HGRN2: Gated Linear RNNs with State Expansion (arXiv 2404.07904), section 3"

    def __init__(
        self, shape: AttentionShape, *, lower_bound: Annotated[float, Range(0.0, 0.9999)] = 0.0, impl: Impl = "auto"
    ):
        super().__init__(shape, impl=impl)
        self.norm = nn.Parameter(torch.ones(shape.heads, 1, shape.head_dim))
        self.lower_bound = lower_bound

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Terms:
        # 1 - f without a difference of numbers near 1
        let_go = (1.0 - self.lower_bound) * torch.sigmoid(-key)
        kept = F.logsigmoid(key) if self.lower_bound == 0 else torch.log1p(-let_go)
        return Terms(F.silu(query), let_go, value, kept)

    def finish(self, output: Tensor, hidden: Tensor | None) -> Tensor:
        size = output.square().mean((1, 3), keepdim=True)
        return output * torch.rsqrt(size + 1e-5) * self.norm.to(output.dtype)
