"""Additive attention: a small network scores each pair of query and key."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from ..contract import (
    AttentionShape,
    KeyValueCache,
    Mask,
    ScoredVariant,
    SelectionError,
    Width,
    accumulator,
    repeat_heads,
)
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.first_derivative import OF_ADDITIVE, first_derivative_only

# values of tanh held at once: a cache's worth on a CPU, enough to fill the device elsewhere
_TILE_ON_CPU = 1 << 18
_TILE_ELSEWHERE = 1 << 24
# hidden sums of a tile of queries stay in registers up to here
_FUSED_HIDDEN = 256


class Additive(ScoredVariant):
    """Additive attention: w·tanh(W q + U k), never holding all pairs times the hidden size.

    Per head: W and U (hidden, head_dim), w (hidden); `hidden` is head_dim unless given. `bias` adds b inside the tanh.
    `normalized` puts g w/|w| for w, with g starting at hidden^-1/2, and includes the bias (Raffel et al. 2017, Online
    and Linear-Time Attention, section 2.4). Scores are computed by tiles and the tiles again in the backward pass.
    `impl`: auto takes the Triton kernels, which keep no scores either, on a GPU that can run them with a hidden size of
    at most 256, eager otherwise; eager is the definition.
    """

    simplex: ClassVar = True
    equation: ClassVar = "s_ij = w·tanh(W q_i + U k_j (+ b)); P = softmax(s); O = P V"
    paper: ClassVar = "Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and Translate"
    time: ClassVar = "O(N^2 hidden)"
    memory: ClassVar = "O(N^2); triton O(N (hidden + d))"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        hidden: Width | None = None,
        bias: bool = False,
        normalized: bool = False,
        impl: Literal["auto", "eager", "triton"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl
        if hidden is not None and hidden < 1:
            raise SelectionError(f"additive: expected hidden to be at least 1, got {hidden}; leave it out for head_dim")
        self.hidden = hidden or shape.head_dim
        width = (shape.heads, self.hidden, shape.head_dim)
        self.query_weight = nn.Parameter(torch.empty(width).uniform_(-1, 1) * shape.head_dim**-0.5)
        self.key_weight = nn.Parameter(torch.empty(width).uniform_(-1, 1) * shape.head_dim**-0.5)
        self.direction = nn.Parameter(torch.empty(shape.heads, self.hidden).uniform_(-1, 1) * self.hidden**-0.5)
        self.bias = nn.Parameter(torch.zeros(shape.heads, 1, self.hidden)) if bias or normalized else None
        self.gain = nn.Parameter(torch.full((shape.heads, 1), self.hidden**-0.5)) if normalized else None

    def supports(self, shape: AttentionShape) -> str | None:
        if self.impl == "triton" and self.hidden > _FUSED_HIDDEN:
            return f"impl=triton takes a hidden size of at most {_FUSED_HIDDEN}, got {self.hidden}; use impl=eager"
        return super().supports(shape) or refusal(self.impl, shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        # more hidden units than fit the registers of a program go the eager way, on auto as well
        impl = self.impl if self.hidden <= _FUSED_HIDDEN else "eager"
        self.implementation = choose_implementation(impl, value, query, key, dropout=self.weight_dropout)
        if self.implementation == "eager":
            return super().forward(query, key, value, mask)
        from ..kernels.gpu import additive_attention

        # the products with W and U are cuBLAS's; the kernel adds, squashes and sums
        projected_query, projected_key = self._project_query(query, torch.float32), self._project_key(key)
        direction = self._directions(torch.float32)
        return additive_attention(projected_query, projected_key, direction, value, mask.valid, mask.causal)

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """w·tanh(W q_i + U k_j (+ b)), (batch, heads, queries, keys)."""
        return self._score_projected(query, self._project_key(key))

    def state_bytes(self, shape: AttentionShape) -> int | None:
        # the cache holds U k + b in float32 at least, as it is computed
        projected = self.hidden * max(4, shape.bytes_per_value)
        return shape.heads * (projected + shape.head_dim * shape.bytes_per_value) * shape.max_length

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode one token; the cache holds U k + b, so no key is projected twice."""
        # every query head projects keys by a matrix of its own
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        projected = self._project_key(key)
        cache = state or KeyValueCache.empty(projected, value)
        keys, values = cache.append(projected, value)
        weights = F.dropout(self.weigh(self._score_projected(query, keys), None), self.weight_dropout)
        return weights.to(value.dtype) @ values, cache

    def _project_key(self, key: Tensor) -> Tensor:
        dtype = accumulator(key.dtype)
        projected = key.to(dtype) @ self.key_weight.to(dtype).transpose(-2, -1)
        return projected if self.bias is None else projected + self.bias.to(dtype)

    def _score_projected(self, query: Tensor, projected_key: Tensor) -> Tensor:
        dtype = projected_key.dtype
        projected, direction = self._project_query(query, dtype), self._directions(dtype)
        return cast(Tensor, AdditiveScores.apply(projected, projected_key, direction))  # type: ignore[no-untyped-call]

    def _project_query(self, query: Tensor, dtype: torch.dtype) -> Tensor:
        return query.to(dtype) @ self.query_weight.to(dtype).transpose(-2, -1)

    def _directions(self, dtype: torch.dtype) -> Tensor:
        """w of each head, (heads, hidden)."""
        direction = self.direction.to(dtype)
        return direction if self.gain is None else self.gain.to(dtype) * F.normalize(direction, dim=-1)


class AdditiveScores(torch.autograd.Function):
    """s_ij = w·tanh(a_i + b_j) of a (batch, heads, queries, hidden), b (batch, heads, keys, hidden), w (heads, hidden).

    Holds one tile of tanh at a time, forward and backward. It has no second derivative.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, query: Tensor, key: Tensor, direction: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, direction)
        scores = query.new_empty(*query.shape[:3], key.shape[2])
        for rows, columns in _tiles(query, key):
            # (batch, heads, rows, columns, hidden): the only tensor of five dimensions, one tile of it at a time
            tile = _tanh(query[:, :, rows], key[:, :, columns])
            scores[:, :, rows, columns] = (tile @ direction[:, None, :, None]).squeeze(-1)
        return scores

    @staticmethod
    @first_derivative_only(OF_ADDITIVE)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, direction = ctx.saved_tensors
        of_query, of_key, of_direction = (torch.zeros_like(of) for of in (query, key, direction))
        for rows, columns in _tiles(query, key):
            part = gradient[:, :, rows, columns]
            tile = _tanh(query[:, :, rows], key[:, :, columns])
            # the gradient of w needs tanh itself, so it comes before the tile is turned into the slope in place
            of_direction += (part[..., None, :] @ tile).sum((0, 2, 3))
            # 1 - tanh^2; w is multiplied in at the end, once for all pairs
            slope = tile.square_().neg_().add_(1).mul_(part[..., None])
            of_query[:, :, rows] += slope.sum(3)
            of_key[:, :, columns] += slope.sum(2)
        return of_query.mul_(direction[:, None]), of_key.mul_(direction[:, None]), of_direction


def _tanh(query: Tensor, key: Tensor) -> Tensor:
    return (query[:, :, :, None] + key[:, :, None]).tanh_()


def _tiles(query: Tensor, key: Tensor) -> list[tuple[slice, slice]]:
    """Rows and columns of the tiles that cover all pairs, each of at most the tile's size or one pair per head."""
    room = _TILE_ON_CPU if query.device.type == "cpu" else _TILE_ELSEWHERE
    pairs = max(1, room // max(1, query.shape[0] * query.shape[1] * query.shape[3]))
    width = max(1, min(key.shape[2], pairs))
    height = max(1, pairs // width)
    return [
        (slice(top, top + height), slice(left, left + width))
        for top in range(0, query.shape[2], height)
        for left in range(0, key.shape[2], width)
    ]
