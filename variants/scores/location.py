"""Location-based attention: scores from the query and the position of the key alone."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant, Unsupported, accumulator


class Location(ScoredVariant):
    """Location-based attention: each query says which positions it wants, whatever stands there.

    W, (heads, max_length, head_dim), holds one row for each position of a key, counted from the first key, padding
    included; so the sequence must not be padded on the left. `max_length` is that of the shape it was built for:
    `supports` refuses more, and forward raises Unsupported.
    """

    ignores = frozenset({"key"})
    simplex: ClassVar = True
    equation: ClassVar = "s_i = W q_i over positions; P = softmax(s); O = P V"
    paper: ClassVar = (
        "Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation, eq. 9 (location)"
    )

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.positions = nn.Parameter(torch.randn(shape.heads, shape.max_length, shape.head_dim) * shape.head_dim**-0.5)

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """W_j·q_i, (batch, heads, queries, keys)."""
        keys, known = key.shape[2], self.positions.shape[1]
        if keys > known:
            raise Unsupported(f"location: expected at most {known} keys, got {keys}; build it for a larger max_length")
        dtype = accumulator(query.dtype)
        # one column for each position, whatever key stands there
        return query.to(dtype) @ self.positions[:, :keys].to(dtype).transpose(-2, -1)

    def supports(self, shape: AttentionShape) -> str | None:
        known = self.positions.shape[1]
        if shape.max_length > known:
            return f"it has weights for {known} positions, not for {shape.max_length}"
        return super().supports(shape)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        return shape.kv_width * shape.max_length * shape.bytes_per_value

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode one token; of the keys only their number is kept."""
        # keys of no width: only how many there are is needed
        return super().step(query, key[..., :0], value, state)
