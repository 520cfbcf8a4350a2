"""DeltaNet: linear attention whose state forgets what a key held before it writes anew."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape
from ..ops.recurrences import RecurrentVariant, delta_rule, from_token


class Delta(RecurrentVariant):
    """DeltaNet: each token replaces a share b of what the state holds along its key by its value (the delta rule).

    Queries and keys go through SiLU and are divided by their length, as in Yang et al.; the first paper has other
    features. b = sigmoid(w x) of each token and head. `decay=scalar` is Gated DeltaNet: the state also decays by
    exp(-A softplus(u x + c)) of each token and head, A from U(1, 16), c so that the softplus starts between 0.001 and
    0.1. The papers compute b and the decay from the token's hidden state x, which a variant over projected heads does
    not see: here x is the token's values of all heads together, a linear map of that state which rotary positions leave
    alone. Without the papers' short convolutions, which belong to the model, and without an output gate. Causal only.
    """

    equation: ClassVar = "S_i = a_i (I - b_i k_i^T k_i) S_(i-1) + b_i k_i^T v_i; o_i = RMSNorm(q_i S_i); a_i = 1"
    paper: ClassVar = (
        "Schlag, Irie & Schmidhuber 2021, Linear Transformers Are Secretly Fast Weight Programmers (arXiv 2102.11174); "
        "Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule (arXiv 2406.06484)"
    )

    def __init__(self, shape: AttentionShape, *, decay: Literal["none", "scalar"] = "none"):
        super().__init__(shape)
        self.rate = nn.Linear(shape.width, shape.heads, bias=False)
        self.decay = nn.Linear(shape.width, shape.heads) if decay == "scalar" else None
        if self.decay is not None:
            self.log_slope = nn.Parameter(torch.empty(shape.heads).uniform_(1.0, 16.0).log())
            # the bias whose softplus is drawn log-uniformly, as in Mamba
            start = torch.empty(shape.heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
            with torch.no_grad():
                self.decay.bias.copy_(start + (-torch.expm1(-start)).log())

    def recur(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        absent = ~real[:, None, :]
        rate, decay = self._rate(value).masked_fill(absent, 0.0), self._log_decay(value)
        if decay is not None:
            decay = decay.masked_fill(absent, 0.0)
        return delta_rule(self.read(query), _unit(key), value, rate, decay)

    def advance(self, key: Tensor, value: Tensor, state: Tensor) -> Tensor:
        key, decay = _unit(key), self._log_decay(value)
        if decay is not None:
            state = decay.exp()[..., None] * state
        return state + key.transpose(-2, -1) @ (self._rate(value)[..., None] * (value - key @ state))

    def read(self, query: Tensor) -> Tensor:
        return _unit(query)

    def _rate(self, value: Tensor) -> Tensor:
        """b, (batch, heads, length)."""
        return from_token(self.rate, value).transpose(1, 2).sigmoid()

    def _log_decay(self, value: Tensor) -> Tensor | None:
        """ln a, (batch, heads, length), or None where nothing decays."""
        if self.decay is None:
            return None
        steps = F.softplus(from_token(self.decay, value).transpose(1, 2))
        return -self.log_slope.to(value.dtype).exp()[:, None] * steps


def _unit(x: Tensor) -> Tensor:
    x = F.silu(x)
    # smooth at zero, where a division by the length itself has no gradient
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
