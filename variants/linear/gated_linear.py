"""Gated linear attention (GLA): a state that forgets, by a gate of each token and dimension."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Range, Width
from ..ops.projection import projected
from ..ops.recurrences import Terms
from .recurrent import Impl, RecurrentVariant, by_head


class GatedLinear(RecurrentVariant):
    """Gated linear attention: sums of k^T v that decay by a gate in (0, 1) of each token and each dimension of the key.

    The gate is a map of low rank of the token's hidden state x, sigmoid(W2 W1 x + b)^(1 / temperature); `rank` and
    `temperature` are the paper's. Each head's output is normalised (RMS) and, with `output_gate`, multiplied by
    swish(W x + c). The paper also halves the width of queries and keys; here they are as wide as the model makes them.
    Causal only.
    """

    equation: ClassVar = (
        "S_i = diag(a_i) S_(i-1) + k_i^T v_i; o_i = RMSNorm(q_i S_i) * swish(W x_i + c); "
        "a_i = sigmoid(W2 W1 x_i + b)^(1/temperature)"
    )
    paper: ClassVar = (
        "Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient Training (arXiv 2312.06635), "
        "section 4"
    )

    def __init__(
        self,
        shape: AttentionShape,
        *,
        rank: Width = 16,
        temperature: Annotated[float, Range(1e-3, 1e6)] = 16.0,
        output_gate: bool = True,
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.temperature = temperature
        self.decay_down = nn.Linear(shape.hidden_width, rank, bias=False)
        self.decay_up = nn.Linear(rank, shape.width)
        self.output_gate = nn.Linear(shape.hidden_width, shape.width) if output_gate else None

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        logits = projected(self.decay_up, projected(self.decay_down, hidden))
        decay = F.logsigmoid(by_head(logits, self.shape.heads)) / self.temperature
        return Terms(query, key, value, decay)

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        output = super().finish(output, hidden)
        if self.output_gate is None:
            return output
        return output * F.silu(by_head(projected(self.output_gate, hidden), self.shape.heads))
