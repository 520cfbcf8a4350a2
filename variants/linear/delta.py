"""DeltaNet: linear attention whose state forgets what a key held before it writes anew."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant, by_head


class Delta(RecurrentVariant):
    """DeltaNet: each token replaces a share b of what the state holds along its key by its value (the delta rule).

    Queries and keys go through SiLU and are divided by their length, as in Yang et al.; the first paper has other
    features. b = sigmoid(w x) of each token and head. `decay=scalar` is Gated DeltaNet: the state also decays by
    exp(-A softplus(u x + c)) of each token and head, A from U(1, 16), c so that the softplus starts between 0.001 and
    0.1; x is the token's hidden state. `decay=channel` is Kimi Delta Attention (KDA): each row of the state decays by
    itself, by exp(-A softplus(U2 U1 x + c)) of each token and dimension of the key, U1 to head_dim. With
    `eigenvalues=signed` b = 2 sigmoid(w x): the eigenvalue 1 - b of a token along its key then lies in (-1, 1) and not
    in (0, 1), so that a state can change its sign, which parity needs. Without the papers' short convolutions and
    output gates, which wrappers add. Causal only.
    """

    equation: ClassVar = "S_i = (I - b_i k_i^T k_i) a_i S_(i-1) + b_i k_i^T v_i; o_i = RMSNorm(q_i S_i); a_i = 1"
    paper: ClassVar = (
        "Schlag, Irie & Schmidhuber 2021, Linear Transformers Are Secretly Fast Weight Programmers (arXiv 2102.11174); "
        "Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule (arXiv 2406.06484); "
        "decay=channel: Kimi Team 2025, Kimi Linear (arXiv 2510.26692); "
        "eigenvalues: Grazzi et al. 2024, Unlocking State-Tracking in Linear RNNs (arXiv 2411.12537)"
    )

    def __init__(
        self,
        shape: AttentionShape,
        *,
        decay: Literal["none", "scalar", "channel"] = "none",
        eigenvalues: Literal["positive", "signed"] = "positive",
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.most = 2.0 if eigenvalues == "signed" else 1.0
        self.rate = nn.Linear(shape.hidden_width, shape.heads, bias=False)
        self.decay_down = nn.Linear(shape.hidden_width, shape.head_dim, bias=False) if decay == "channel" else None
        self.decay: nn.Linear | None = None
        if decay != "none":
            inputs, outputs = shape.hidden_width, shape.heads
            if self.decay_down is not None:
                inputs, outputs = shape.head_dim, shape.width
            self.decay = nn.Linear(inputs, outputs)
            self.log_slope = nn.Parameter(torch.empty(shape.heads).uniform_(1.0, 16.0).log())
            # the bias whose softplus is drawn log-uniformly, as in Mamba
            start = torch.empty(outputs).uniform_(math.log(1e-3), math.log(0.1)).exp()
            with torch.no_grad():
                self.decay.bias.copy_(start + (-torch.expm1(-start)).log())

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        key, rate = unit(key), self.most * projected(self.rate, hidden).transpose(1, 2).sigmoid()[..., None]
        return Terms(unit(query), key, rate * value, self._log_decay(hidden), rate * key)

    def _log_decay(self, hidden: Tensor) -> Tensor | None:
        """ln a, (batch, heads, length), with channels (batch, heads, length, head_dim); None where nothing decays."""
        if self.decay is None:
            return None
        slope = self.log_slope.to(hidden.dtype).exp()[:, None]
        if self.decay_down is None:
            return -slope * F.softplus(projected(self.decay, hidden).transpose(1, 2))
        steps = F.softplus(projected(self.decay, projected(self.decay_down, hidden)))
        return -slope[..., None] * by_head(steps, self.shape.heads)


def unit(x: Tensor) -> Tensor:
    """SiLU of queries or keys, (…, head_dim), divided by its length."""
    x = F.silu(x)
    # smooth at zero, where a division by the length itself has no gradient
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
