"""Gated DeltaNet-2: the delta rule with a gate of channels for what is erased, and another for what is written."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from ..contract import AttentionShape
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .delta import Delta, unit
from .recurrent import Impl, by_head


class GatedDelta2(Delta):
    """Gated DeltaNet-2: KDA whose one rate is two gates, b of the key's channels, and w of the value's.

    b and w are sigmoid(W x) of the token's hidden state x; with `eigenvalues=signed` b reaches 2. With equal channels
    b = w it is KDA, `delta[decay=channel]`, whose decay of channels, starts, queries and keys it has. Short
    convolutions and output gates are wrappers. Causal only.
    """

    equation: ClassVar = (
        "S_i = (I - k_i^T (b_i * k_i)) diag(a_i) S_(i-1) + k_i^T (w_i * v_i); o_i = RMSNorm(q_i S_i); "
        "b, w = sigmoid(W x_i)"
    )
    paper: ClassVar = (
        "Hatamizadeh, Choi & Kautz 2026, Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention "
        "(arXiv 2605.22791)"
    )

    def __init__(
        self,
        shape: AttentionShape,
        *,
        eigenvalues: Literal["positive", "signed"] = "positive",
        impl: Impl = "auto",
    ):
        super().__init__(shape, decay="channel", eigenvalues=eigenvalues, impl=impl)
        self.rate = nn.Linear(shape.hidden_width, shape.width, bias=False)
        self.write = nn.Linear(shape.hidden_width, shape.width, bias=False)

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        erase, write = (
            by_head(projected(gate, hidden).sigmoid(), self.shape.heads) for gate in (self.rate, self.write)
        )
        key = unit(key)
        return Terms(unit(query), key, write * value, self._log_decay(hidden), self.most * erase * key)
