"""Feed-forward attention: the sequence pooled by learned weights, the same for every query."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import (
    AttentionShape,
    Mask,
    ScoredVariant,
    SelectionError,
    Width,
    accumulator,
    masked_softmax,
    repeat_heads,
)
from ..ops.prefix_scan import Remembered, extend, prefix_softmax, without


class FeedForward(ScoredVariant):
    """Feed-forward attention: keys alone are scored, w·tanh(W k + b), and all queries share one pooled vector.

    Per head: W (hidden, head_dim), b and w (hidden); `hidden` is head_dim unless given. (The paper's own score is the
    single unit tanh(w·h + b); this is the form with a hidden layer that its successors use.) Causal: the pooled vector
    of the keys so far, by a stable prefix softmax. Dropout falls on the weight of a key, one draw for all queries.
    """

    ignores = frozenset({"query"})
    simplex: ClassVar = True
    equation: ClassVar = "e_j = w·tanh(W k_j + b); p = softmax(e); o_i = sum_j p_j v_j"
    paper: ClassVar = (
        "Raffel & Ellis 2015, Feed-Forward Networks with Attention Can Solve Some Long-Term Memory Problems"
    )
    time: ClassVar = "O(N d hidden)"
    memory: ClassVar = "O(N d)"

    def __init__(self, shape: AttentionShape, *, hidden: Width | None = None):
        super().__init__(shape)
        if hidden is not None and hidden < 1:
            raise SelectionError(
                f"feedforward: expected hidden to be at least 1, got {hidden}; leave it out for head_dim"
            )
        hidden = hidden or shape.head_dim
        self.weight = nn.Parameter(
            torch.empty(shape.heads, hidden, shape.head_dim).uniform_(-1, 1) * shape.head_dim**-0.5
        )
        self.bias = nn.Parameter(torch.zeros(shape.heads, 1, hidden))
        self.direction = nn.Parameter(torch.empty(shape.heads, hidden, 1).uniform_(-1, 1) * hidden**-0.5)

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """The score of each key, (batch, heads, queries, keys), a view that repeats it for every query."""
        return self._score_keys(key)[:, :, None].expand(-1, -1, query.shape[2], -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        scores = self._score_keys(key)
        kept = self._drop(value.to(scores.dtype))
        valid = None if mask.valid is None else mask.valid[:, None]
        if mask.causal:
            # the average up to each key; a padded one has no weight and leaves it as it is
            pooled = prefix_softmax(*without(scores, kept, valid))[1]
            # aligned at the last key; what comes before the first key sees nothing
            return F.pad(pooled, (0, 0, queries - keys, 0)).to(value.dtype)
        pooled = masked_softmax(scores, valid)[:, :, None] @ kept
        return pooled.to(value.dtype).expand(-1, -1, queries, -1)

    def density(self, shape: AttentionShape) -> float:
        """One score for each key, of all pairs."""
        return 2 / (shape.max_length + 1) if shape.causal else 1 / shape.max_length

    def state_bytes(self, shape: AttentionShape) -> int | None:
        return shape.heads * (shape.head_dim + 1) * max(4, shape.bytes_per_value)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Remembered | None = None
    ) -> tuple[Tensor, Remembered]:
        """Decode one token from the log mass and the mean of the keys so far."""
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        scores = self._score_keys(key)
        pooled, state = extend(state, scores, self._drop(value.to(scores.dtype)))
        return pooled.to(value.dtype), state

    def _score_keys(self, key: Tensor) -> Tensor:
        dtype = accumulator(key.dtype)
        inner = key.to(dtype) @ self.weight.to(dtype).transpose(-2, -1) + self.bias.to(dtype)
        return (inner.tanh() @ self.direction.to(dtype)).squeeze(-1)

    def _drop(self, value: Tensor) -> Tensor:
        """Values of the keys whose weight survives dropout, scaled up; weights are not normalised again."""
        if not self.training or not self.shape.dropout:
            return value
        return value * F.dropout(value.new_ones(*value.shape[:3], 1), self.shape.dropout)
