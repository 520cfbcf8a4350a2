"""RWKV-7: a state whose transition is a decay of channels less a removal along one key, put back along another."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Width, accumulator, repeat_heads
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant, by_head

STRONGEST = math.exp(-0.5)
"""The largest rate of a decay: a factor is at least exp(-exp(-0.5)) = 0.545."""


class RWKV7(RecurrentVariant):
    """The time mixing of RWKV-7 over queries (r of the paper), keys and values.

    Of the token's hidden state x come, each through `rank` dimensions, the decay w = exp(-0.607 sigmoid(W2 tanh(W1 x) +
    c)) of channels, the rate a = sigmoid(A2 A1 x + e) in which what the state holds along the removal key u = k * m,
    of length 1, is taken away, and the output gate g = G2 sigmoid(G1 x). The key that is written is k (1 + (a - 1) n).
    Each head's output gets a group norm, and what the token itself says, (r * p · key) v. m, n, p and the biases c and
    e are learned, from the paper's starts for a first layer. The value's mixture with the first layer's, which needs
    another layer, is left out, and so are the token shifts, which a preset's `convolution` or `conv+` stands in for.
    Causal only.
    """

    equation: ClassVar = (
        "S_i = (diag(w_i) - (a_i * u_i)^T u_i) S_(i-1) + (k_i (1 + (a_i - 1) n))^T v_i; u_i = k_i * m / |k_i * m|; "
        "o_i = (GroupNorm(r_i S_i) + (r_i * p · k_i (1 + (a_i - 1) n)) v_i) * g_i"
    )
    paper: ClassVar = (
        "Peng et al. 2025, RWKV-7 Goose with Expressive Dynamic State Evolution (arXiv 2503.14456), section 4"
    )

    def __init__(self, shape: AttentionShape, *, rank: Width = 32, impl: Impl = "auto"):
        super().__init__(shape, impl=impl)
        # from 0 to 1 over all channels, and from -1 to 1 over those of a head, signed squares
        along = torch.linspace(0.0, 1.0, shape.width)
        within = torch.linspace(-1.0, 1.0, shape.head_dim) if shape.head_dim > 1 else torch.zeros(1)
        within = (within * within.abs()).repeat(shape.heads)
        self.decay_down, self.decay_up = _low_rank(shape, rank, -5.5 + 6.0 * along + 2.5 * within)
        self.rate_down, self.rate_up = _low_rank(shape, rank, -0.19 + 0.3 * within + 0.4 * (along - 0.5))
        self.gate_down, self.gate_up = _low_rank(shape, rank, None)
        by_channel = (shape.heads, 1, shape.head_dim)
        self.removal = nn.Parameter((0.71 - 0.1 * (along - 0.5)).view(by_channel))
        self.mixture = nn.Parameter(torch.full(by_channel, 1.02))
        self.bonus = nn.Parameter(torch.full(by_channel, -0.04))
        self.norm = nn.Parameter(torch.ones(by_channel))
        self.shift = nn.Parameter(torch.zeros(by_channel))

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        heads = self.shape.heads
        logits = projected(self.decay_up, projected(self.decay_down, hidden).tanh())
        decay = -STRONGEST * by_head(logits.sigmoid(), heads)
        rate = self._rate(hidden)
        removed = key * self.removal.to(key.dtype)
        # smooth at zero, where a division by the length itself has no gradient
        removed = removed * torch.rsqrt(removed.square().sum(-1, keepdim=True) + 1e-12)
        nothing = torch.zeros_like(key)
        # two steps a token: what is removed, of the state before its decay, and what is written
        pairs = (
            (rate * removed, self._written(key, rate)), (nothing, value), (decay, nothing),
            (removed * (-decay).exp(), nothing),
        )  # fmt: skip
        return Terms(query, *(torch.stack(pair, 3).flatten(2, 3) for pair in pairs))

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        normed = F.layer_norm(output, output.shape[-1:], eps=1e-5 * output.shape[-1])
        return normed * self.norm.to(output.dtype) + self.shift.to(output.dtype)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        output = self._gated(super().forward(query, key, value, mask, hidden), query, key, value, hidden)
        # the shift and a token's own value are there without a key to see
        return output if mask.valid is None else output.masked_fill(~mask.valid[:, None, :, None], 0.0)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Tensor | None = None, hidden: Any = None
    ) -> tuple[Tensor, Tensor]:
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        output, state = super().step(query, key, value, state, hidden)
        return self._gated(output, query, key, value, hidden), state

    def density(self, shape: AttentionShape) -> float:
        return min(1.0, 2 * super().density(shape))

    def _rate(self, hidden: Tensor) -> Tensor:
        return by_head(projected(self.rate_up, projected(self.rate_down, hidden)).sigmoid(), self.shape.heads)

    def _written(self, key: Tensor, rate: Tensor) -> Tensor:
        return key * (1.0 + (rate - 1.0) * self.mixture.to(key.dtype))

    def _gated(self, output: Tensor, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        dtype = accumulator(query.dtype)
        query, key, hidden = query.to(dtype), key.to(dtype), hidden.to(dtype)
        own = (query * self.bonus.to(dtype) * self._written(key, self._rate(hidden))).sum(-1, keepdim=True)
        gate = by_head(projected(self.gate_up, projected(self.gate_down, hidden).sigmoid()), self.shape.heads)
        return ((output.to(dtype) + own * value.to(dtype)) * gate).to(value.dtype)


def _low_rank(shape: AttentionShape, rank: int, bias: Tensor | None) -> tuple[nn.Linear, nn.Linear]:
    """Two maps through `rank` dimensions, the first from zero, as the released code starts."""
    down, up = nn.Linear(shape.hidden_width, rank, bias=False), nn.Linear(rank, shape.width, bias=bias is not None)
    nn.init.zeros_(down.weight)
    nn.init.orthogonal_(up.weight, 0.1 * max(1.0, math.sqrt(rank / shape.width)))
    if bias is not None:
        with torch.no_grad():
            up.bias.copy_(bias)
    return down, up
