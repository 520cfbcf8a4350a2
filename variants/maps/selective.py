"""Selective attention: a token can lower the scores that a key gets from all later queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, KeyValueCache, Mask, ScoredVariant, Unsupported, accumulator


@dataclass(slots=True)
class SelectiveCache:
    """Keys and values seen so far, and what has been taken from the scores of each key, (batch, length)."""

    seen: KeyValueCache
    taken: Tensor


class Selective(ScoredVariant):
    """Selective attention: the positive scores of the first head are taken from those of all later queries.

    What a token gives to a key in head 0 is what it lets the key lose, in all heads, from the next token on. The first
    key loses nothing, and no key loses by its own token. Without parameters. Causal only, over one sequence.
    """

    crosses: ClassVar = False
    grouped: ClassVar = True
    simplex: ClassVar = True
    maps_products = True
    equation: ClassVar = (
        "P = softmax(S - F), S = Q K^T / sqrt(d); F_ij = sum_{j < l < i} ReLU(S^0_lj), F_i0 = 0; O = P V"
    )
    paper: ClassVar = (
        "Leviathan, Kalman & Matias 2024, Selective Attention Improves Transformer (arXiv 2410.02703), section 3"
    )

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "what a token takes is taken from later queries, so it needs the causal form"
        return refused

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        length = query.shape[2]
        if not mask.causal or length != key.shape[2]:
            raise Unsupported(
                f"selective: expected a causal mask over one sequence, got {length} queries, {key.shape[2]} keys"
            )
        picked = rows or slice(None)
        first = self.score(query[:, :1], key[:, :1])[:, 0]
        real = mask.real(key)
        # later keys than the query, its own, and queries that are padding
        none = torch.ones(length, length, dtype=torch.bool, device=query.device).triu() | ~real[:, :, None]
        # the first real key; argmax of equal entries is the first of them
        start = F.one_hot(real.to(torch.uint8).argmax(-1), length).bool()
        taken = first.relu().masked_fill(none | start[:, None], 0.0)
        # from the next query on
        taken = F.pad(taken.cumsum(-2), (0, 0, 1, -1))[:, None, picked]
        allowed = mask.allowed(length, length, query.device, rows)
        return self.weigh(self.score(query[:, :, picked], key) - taken, allowed)

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.max_length * (2 * shape.kv_width * shape.bytes_per_value + itemsize)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: SelectiveCache | None = None
    ) -> tuple[Tensor, SelectiveCache]:
        if state is None:
            nothing = query.new_zeros(query.shape[0], 0, dtype=accumulator(query.dtype))
            state = SelectiveCache(KeyValueCache.empty(key, value), nothing)
        keys, values = state.seen.append(key, value)
        scores = self.score(query, keys)
        taken = F.pad(state.taken, (0, 1))
        weights = F.dropout(self.weigh(scores - taken[:, None, None], None), self.weight_dropout)
        # neither from the first key nor from its own
        state.taken = taken + F.pad(scores[:, 0, 0, 1:-1].relu(), (1, 1))[:, : taken.shape[1]]
        return self.average(weights.to(values.dtype), values), state
