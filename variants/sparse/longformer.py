"""Longformer: a sliding window and a few global tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..contract import AttentionShape, Count, Mask, Range
from ..ops.bands import Band, RecentCache, attend, cached_bytes
from ..ops.dropout import KeptPairs, WeightDropout
from ..ops.patterns import whole
from .tiled import Impl, TiledPattern


class Longformer(TiledPattern):
    """Sliding-window attention with global tokens: each query sees `window` keys on each side and the first tokens.

    The first `global_tokens` tokens see everything and are seen by all. Causal: the window reaches back only, and
    the global tokens are keys that every later query sees. `window`: 256 a side (512 in all) as in the paper, or an
    eighth of max_length where that is less; `global_tokens`: 1, the class token of the paper's classifiers. The paper
    projects queries and keys a second time for global attention; here both kinds share the projections of the model.
    Computed in blocks of at least 32 queries, on a CPU by tiles in C++; decoding keeps the global tokens and
    the window.
    """

    equation: ClassVar = "o_i = sum_j softmax_j(q_i·k_j / sqrt(d)) v_j; |i - j| <= window or j < g or i < g"
    paper: ClassVar = "Beltagy et al. 2020, Longformer: The Long-Document Transformer, sec. 3.1"
    time: ClassVar = "O(N (window + global_tokens) d)"
    memory: ClassVar = "O(N (window + global_tokens))"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        window: Count | None = None,
        global_tokens: Annotated[int, Range(0, 1_048_576)] = 1,
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.window = whole("window", window, min(256, shape.max_length // 8))
        self.global_tokens = whole("global_tokens", global_tokens, 1, least=0)

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        at, key_at = at[:, None], torch.arange(keys, device=at.device)
        seen = ((at - key_at).abs() <= self.window) | (key_at < self.global_tokens)
        if causal:
            return (seen & (key_at <= at))[None]
        return (seen | (at < self.global_tokens))[None]

    def blocked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        drop: WeightDropout | None = None,
        missing: int = 0,
    ) -> Tensor:
        batch, heads, length, _ = query.shape
        given = {"scale": query.shape[-1] ** -0.5, "dropout": self.weight_dropout}
        after = 0 if mask.causal else self.window
        # blocks as wide as the window compute up to twice what it needs; with fewer than 32 queries the products
        # would be too thin
        band = Band.fit(length, max(32, self.window), self.window, after)
        query_at, key_at = band.at(query.device)
        # global keys inside the window are left to the part in front, or they would count twice
        near = ((key_at - query_at).abs() <= self.window) & (key_at >= self.global_tokens)
        allowed = band.allowed(mask.valid, mask.causal, query.device) & near
        keys, values, kept = band.spans(key), band.spans(value), band.kept(drop, batch, heads, missing)
        first = min(self.global_tokens, length)
        if first:
            # the global keys stand in front of every block's span, so one softmax covers both
            keys = torch.cat([_before_each_block(key[:, :, :first], band), keys], -2)
            values = torch.cat([_before_each_block(value[:, :, :first], band), values], -2)
            seen = torch.ones_like(near[..., :1]).expand(*near.shape[:-1], first)
            if mask.causal:
                # a causal query sees the global keys that it has passed
                seen = torch.arange(first, device=query.device) <= query_at
            if mask.valid is not None:
                seen = seen & mask.valid[:, None, None, None, :first]
            seen = seen.expand(*allowed.shape[:-1], first)
            allowed = torch.cat([seen, allowed], -1)
            if drop is not None and kept is not None:
                in_front = drop.kept(batch, heads, query_at[None, ..., 0] - missing, first)
                kept = KeptPairs(torch.cat([in_front.mask, kept.mask], -1), kept.scale)
        output = band.merge(attend(band.split(query), keys, values, allowed, kept=kept, **given))
        if mask.causal or not first:
            return output
        # the global tokens as queries see all, densely: they are few
        everything = mask.allowed(first, length, query.device)
        kept = None if drop is None else drop.kept(batch, heads, torch.arange(first)[None] - missing, length)
        dense = attend(query[:, :, :first], key, value, everything, kept=kept, **given)
        return torch.cat([dense, output[:, :, first:]], 2)

    def entries(self, length: int, causal: bool) -> int:
        total = 0
        for at in range(length):
            low = max(0, at - self.window)
            high = at if causal else min(length - 1, at + self.window)
            is_global = at < self.global_tokens and not causal
            total += length if is_global else high - low + 1 + min(self.global_tokens, low)
        return total

    def state_bytes(self, shape: AttentionShape) -> int:
        return cached_bytes(shape, self.global_tokens + self.window + 1)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: RecentCache | None = None
    ) -> tuple[Tensor, RecentCache]:
        cache = state or RecentCache.empty(key, value)
        # the oldest are the global ones; the new token makes one more of the window
        cache.trim(self.global_tokens, self.window)
        cache.append(key, value)
        output = attend(query, cache.key, cache.value, None, scale=query.shape[-1] ** -0.5, dropout=self.weight_dropout)
        return output, cache


def _before_each_block(first: Tensor, band: Band) -> Tensor:
    """(batch, heads, first, d) -> (batch, heads, blocks, first, d)."""
    return first[:, :, None].expand(-1, -1, band.blocks, -1, -1)
