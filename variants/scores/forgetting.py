"""Forgetting attention (FoX): softmax attention whose scores fall by what forget gates have let go since each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, KeyValueCache, Mask, ScoredVariant, SelectionError, Unsupported, accumulator
from ..ops.projection import projected


@dataclass(slots=True)
class ForgettingCache:
    """Keys and values seen so far, and the sums of log gates up to each, (batch, heads, length)."""

    seen: KeyValueCache
    sums: Tensor


class Forgetting(ScoredVariant):
    """Forgetting attention: the score of a key falls by the log forget gates of all tokens between it and the query.

    Each token and head has a gate sigmoid(w x + b) of the token's hidden state x, b started at 0 as in the released
    code; a gate weakens all keys before its token. It takes the place of an encoding of positions: the paper's model
    has no other. Padded tokens forget nothing. Causal only.
    """

    takes_hidden = True
    crosses: ClassVar = False
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    simplex: ClassVar = True
    maps_products = True
    equation: ClassVar = "P = softmax(Q K^T / sqrt(d) + c_i - c_j); c_i = sum_{l <= i} ln sigmoid(w x_l + b); O = P V"
    paper: ClassVar = (
        "Lin, Nikishin, He & Courville 2025, Forgetting Transformer: Softmax Attention with a Forget Gate "
        "(arXiv 2503.02130), section 3"
    )

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.gate = nn.Linear(shape.hidden_width, shape.heads)
        nn.init.zeros_(self.gate.bias)

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "it forgets what lies before, so it needs the causal form"
        return refused

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        weights = F.dropout(self.weights(query, key, mask, hidden=hidden), self.weight_dropout)
        return self.average(weights.to(value.dtype), value)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor:
        if hidden is None or not mask.causal or query.shape[2] != key.shape[2]:
            raise Unsupported(
                "fox: expected a causal mask over one sequence with its hidden state, got "
                f"{query.shape[2]} queries, {key.shape[2]} keys"
            )
        sums = self._log_gates(hidden).masked_fill(~mask.real(key)[:, None, :], 0.0).cumsum(-1)
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device, rows)
        picked = rows or slice(None)
        return self._weigh(query[:, :, picked], key, sums[:, :, picked], sums, allowed)

    def state_bytes(self, shape: AttentionShape) -> int:
        keys_and_values = 2 * shape.kv_width * shape.bytes_per_value
        sums = shape.heads * accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.max_length * (keys_and_values + sums)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: ForgettingCache | None = None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ForgettingCache]:  # fmt: skip
        if hidden is None:
            raise SelectionError("fox takes the hidden state: expected hidden, got None")
        now = self._log_gates(hidden)
        if state is None:
            state = ForgettingCache(KeyValueCache.empty(key, value), now[..., :0])
        else:
            now = now + state.sums[..., -1:]
        keys, values = state.seen.append(key, value)
        state.sums = torch.cat([state.sums, now], -1)
        weights = F.dropout(self._weigh(query, keys, now, state.sums, None), self.weight_dropout)
        return self.average(weights.to(values.dtype), values), state

    def _log_gates(self, hidden: Tensor) -> Tensor:
        """(batch, heads, length), below 0, float32 or more: sums of thousands of them are subtracted."""
        return F.logsigmoid(projected(self.gate, hidden.to(accumulator(hidden.dtype)))).transpose(1, 2)

    def _weigh(self, query: Tensor, key: Tensor, own: Tensor, sums: Tensor, allowed: Tensor | None) -> Tensor:
        """own: c of the queries, (batch, heads, queries); sums: c of the keys, (batch, heads, keys)."""
        return self.weigh(self.score(query, key) + own[..., None] - sums[..., None, :], allowed)
