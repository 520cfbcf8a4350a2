"""An output gate: each head's output is multiplied by a sigmoid of the hidden state."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Variant, Wrapper


class OutputGate(Wrapper):
    """Multiply the output by a sigmoid gate of the token's hidden state, before the output projection.

    The paper's best place for a gate: after attention, of each head by itself. `by=dimension` is its elementwise form,
    a gate for each number of the output; `by=head` one for each head. The projection has no bias, so that a gate starts
    near one half.
    """

    takes_hidden = True
    equation: ClassVar = "o_h = sigmoid(W_h x) * attention_h(q, k, v)"
    paper: ClassVar = "Qiu et al. 2025, Gated Attention for Large Language Models (arXiv 2505.06708)"

    def __init__(self, shape: AttentionShape, inner: Variant, *, by: Literal["dimension", "head"] = "dimension"):
        super().__init__(shape, inner)
        outputs = shape.heads * (shape.head_dim if by == "dimension" else 1)
        self.projection = nn.Linear(shape.hidden_width, outputs, bias=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        return self._gated(self.inner(query, key, value, mask, hidden), hidden)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state, hidden)
        assert hidden is not None
        return self._gated(output, hidden), state

    def _gated(self, output: Tensor, hidden: Tensor) -> Tensor:
        # a hidden state in half precision meets parameters in float32
        logits = F.linear(hidden.to(output.dtype), self.projection.weight.to(output.dtype))
        gate = torch.unflatten(logits, -1, (self.shape.heads, -1)).transpose(1, 2).sigmoid()
        return output * gate
