"""Exclusive attention (XSA): what a query gets from others, without the direction of its own value."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Unsupported, Variant, Wrapper, accumulator, repeat_heads


class ExclusiveAttention(Wrapper):
    """Take out of each output its part along the token's own value, so that attention tells of other tokens alone.

    What a token says itself reaches the next sublayer through the residual already. `strength=learned` takes out a
    share tanh(a) of it, a of each head and started at 0, where nothing changes; `full` is the paper's.
    """

    equation: ClassVar = "o = y - (y·v / |v|^2) v, y = attention(q, k, v), v the token's own value"
    paper: ClassVar = "Zhai 2026, Exclusive Self Attention (arXiv 2603.09078)"

    def __init__(self, shape: AttentionShape, inner: Variant, *, strength: Literal["full", "learned"] = "full"):
        super().__init__(shape, inner)
        self.crosses = False  # type: ignore[misc]
        self.strength = nn.Parameter(torch.zeros(shape.heads)) if strength == "learned" else None

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.cross:
            return "a query's own value is that of its token, so queries and keys must be one sequence"
        return super().supports(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        first = mask.offset(query.shape[2], key.shape[2])
        if first < 0 or first + query.shape[2] != key.shape[2]:
            raise Unsupported(f"xsa: expected one sequence, got {query.shape[2]} queries and {key.shape[2]} keys")
        return self._without(self.inner(query, key, value, mask, hidden), value[:, :, first:])

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state, hidden)
        return self._without(output, value), state

    def _without(self, output: Tensor, own: Tensor) -> Tensor:
        """output: (batch, heads, queries, head_dim); own: the values of the same tokens, of as many heads or fewer."""
        dtype = accumulator(output.dtype)
        direction = F.normalize(repeat_heads(own, output.shape[1]).to(dtype), dim=-1)
        part = (output.to(dtype) * direction).sum(-1, keepdim=True)
        if self.strength is not None:
            part = part * self.strength.to(dtype).tanh()[:, None, None]
        return (output.to(dtype) - part * direction).to(output.dtype)
