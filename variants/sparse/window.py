"""Sliding-window attention: each query sees the `size` keys up to its own, and may give weight to a learned sink."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Count, Mask, masked_softmax, repeat_heads
from ..mask import picked_range
from ..ops.bands import Band, RecentCache, attend, cached_bytes, scaled
from ..ops.dropout import KeptPairs, WeightDropout
from ..ops.patterns import absent, whole
from .tiled import Impl, TiledPattern


class Window(TiledPattern):
    """Sliding-window attention: query i sees the keys j with i - j < size, its own among them.

    Without a causal mask it also sees size - 1 keys after its own. The window moves with the query; that of `local`
    moves block by block. `size`: 128 as in gpt-oss, or an eighth of max_length where that is less. `sink=learned`: one
    more score for each head in the sum of exponentials, started at 0, that has no value, so that a head can abstain.
    Queries are computed in blocks of half a window, each with all keys that one of them sees, so that up to a third of
    the scores is computed in vain; on a CPU C++ goes by tiles. Decoding keeps `size` tokens.
    """

    equation: ClassVar = (
        "P_ij = exp(s_ij) 1[i - j < size] / (exp(sink) + sum_j exp(s_ij) 1[i - j < size]), s = Q K^T / sqrt(d); O = P V"
    )
    paper: ClassVar = (
        "Beltagy, Peters & Cohan 2020, Longformer (arXiv 2004.05150), section 3; "
        "sink=learned: OpenAI 2025, gpt-oss model card (arXiv 2508.10925)"
    )
    time: ClassVar = "O(N size d)"
    memory: ClassVar = "O(N size)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        size: Count | None = None,
        sink: Literal["none", "learned"] = "none",
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.size = whole("size", size, min(128, shape.max_length // 8))
        if sink == "learned":
            self.sink = nn.Parameter(torch.zeros(shape.heads))

    def bounds(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        upper = at + (1 if causal else self.size)
        return torch.stack([(at - self.size + 1).clamp(min=0), upper.clamp(max=keys)], -1)

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        return self._inside(at[:, None], torch.arange(keys, device=at.device), causal)[None]

    def blocked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        drop: WeightDropout | None = None,
        missing: int = 0,
    ) -> Tensor:
        reach = self.size - 1
        band = Band.fit(query.shape[2], max(1, self.size // 2), reach, 0 if mask.causal else reach)
        blocks, keys, values = band.split(query), band.spans(key), band.spans(value)
        allowed = band.allowed(mask.valid, mask.causal, query.device)
        allowed = allowed & self._inside(*band.at(query.device), mask.causal)
        kept = band.kept(drop, query.shape[0], query.shape[1], missing)
        return band.merge(self._attend(blocks, keys, values, allowed, kept))

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        if self.sink is None:
            return super().weights(query, key, mask, rows)
        missing, keys = absent(query, key), key.shape[2]
        first, last = picked_range(rows, query.shape[2])
        at = torch.arange(first + missing, last + missing, device=query.device)
        allowed = self.visible(at, keys, mask.causal)[None]
        if mask.valid is not None:
            allowed = allowed & mask.valid[:, None, None, :]
        return self._weigh(query[:, :, first:last], repeat_heads(key, query.shape[1]), allowed)

    def entries(self, length: int, causal: bool) -> int:
        # the first queries have fewer keys before them than a window holds
        outside = max(0, length - self.size)
        one_side = length * (length + 1) // 2 - outside * (outside + 1) // 2
        return one_side if causal else 2 * one_side - length

    def state_bytes(self, shape: AttentionShape) -> int:
        return cached_bytes(shape, self.size)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: RecentCache | None = None
    ) -> tuple[Tensor, RecentCache]:
        cache = state or RecentCache.empty(key, value)
        cache.trim(0, self.size - 1)
        cache.append(key, value)
        return self._attend(query, cache.key, cache.value, None), cache

    def _inside(self, query_at: Tensor, key_at: Tensor, causal: bool) -> Tensor:
        """Boolean, of positions that broadcast: whether the key lies in the window of the query."""
        back = query_at - key_at
        return (back >= 0 if causal else back > -self.size) & (back < self.size)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, kept: KeptPairs | None = None
    ) -> Tensor:
        """Output (…, queries, head_dim) over (…, keys, head_dim), in groups or not."""
        if self.sink is None:
            scale = query.shape[-1] ** -0.5
            return attend(query, key, value, allowed, scale=scale, dropout=self.weight_dropout, kept=kept)
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        weights = self._weigh(query, key, allowed)
        weights = F.dropout(weights, self.weight_dropout) if kept is None else kept.apply(weights)
        return weights.to(value.dtype) @ value

    def _weigh(self, query: Tensor, key: Tensor, allowed: Tensor | None) -> Tensor:
        """Weights (batch, heads, …, queries, keys), float32 or more, with the sink as a last key that is left out."""
        assert self.sink is not None
        query = scaled(query, query.shape[-1] ** -0.5)
        scores = query @ key.to(query.dtype).transpose(-2, -1)
        sink = self.sink.to(scores.dtype).view(-1, *(1,) * (scores.dim() - 2)).expand(*scores.shape[:-1], 1)
        if allowed is not None:
            allowed = F.pad(allowed, (0, 1), value=True)
        return masked_softmax(torch.cat([scores, sink], -1), allowed)[..., :-1]
