"""Scores of Luong et al.: a query times its key, with a matrix in between, or times a vector of the key's position."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant, Unsupported, accumulator

_PAPER = "Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation, "


class Dot(ScoredVariant):
    """Dot-product attention without the factor 1/sqrt(d).

    Scores grow with head_dim, so that the softmax saturates: the reason for which Vaswani et al. scale.
    """

    simplex: ClassVar = True
    takes_bounds: ClassVar = True
    equation: ClassVar = "P = softmax(Q K^T); O = P V"
    paper: ClassVar = _PAPER + "eq. 8 (dot)"

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """Products of queries with what `met` makes of keys, (batch, heads, queries, keys)."""
        # float32 at least: unscaled scores are the first to leave the range of float16
        dtype = accumulator(query.dtype)
        return query.to(dtype) @ self.met(key.to(dtype)).transpose(-2, -1)

    def met(self, key: Tensor) -> Tensor:
        """The vectors that a query is multiplied with, (…, keys, head_dim), in the dtype of the key."""
        return key


class General(Dot):
    """Bilinear attention: q^T W k with one learned W per head.

    W, (heads, head_dim, head_dim), starts at I/sqrt(d), where the function is scaled dot-product softmax, so what
    training makes of W is all the difference. Over projected queries and keys W adds depth and no new functions.
    """

    equation: ClassVar = "P = softmax(Q W K^T); O = P V"
    paper: ClassVar = _PAPER + "eq. 8 (general)"

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        # I / sqrt(d): at the start this is scaled dot-product softmax
        start = torch.eye(shape.head_dim) * shape.head_dim**-0.5
        self.weight = nn.Parameter(start.repeat(shape.heads, 1, 1))

    def met(self, key: Tensor) -> Tensor:
        return key @ self.weight.to(key.dtype).transpose(-2, -1)


class Location(Dot):
    """Location-based attention: each query says which positions it wants, whatever stands there.

    W, (heads, max_length, head_dim), holds one row for each position of a key, counted from the first key, padding
    included; so the sequence must not be padded on the left. `max_length` is that of the shape it was built for:
    `supports` refuses more, and forward raises Unsupported.
    """

    ignores = frozenset({"key"})
    takes_bounds: ClassVar = False
    equation: ClassVar = "s_i = W q_i over positions; P = softmax(s); O = P V"
    paper: ClassVar = _PAPER + "eq. 9 (location)"

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.positions = nn.Parameter(torch.randn(shape.heads, shape.max_length, shape.head_dim) * shape.head_dim**-0.5)

    def met(self, key: Tensor) -> Tensor:
        keys, known = key.shape[2], self.positions.shape[1]
        if keys > known:
            raise Unsupported(f"location: expected at most {known} keys, got {keys}; build it for a larger max_length")
        # one row for each position, whatever key stands there
        return self.positions[:, :keys].to(key.dtype)

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
