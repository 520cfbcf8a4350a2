"""Sparse Transformer attention: the strided and the fixed pattern, each as one merged head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Count, KeyValueCache, Mask, SelectionError, masked_softmax
from ..ops.bands import Band, attend, scaled
from ..ops.dropout import WeightDropout
from ..ops.patterns import whole
from .tiled import Impl, TiledPattern

Far = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


class Sparse(TiledPattern):
    """Factorised attention over the union of two patterns, with a near part and a far part.

    `strided`: the last `stride` keys, and every stride-th key before. `fixed`: the own block of `stride` keys, and the
    last `summary` keys of every other block. Each head attends to the union, the paper's merged head (eq. 8); it also
    tries to alternate the two over layers or heads. Without a causal mask both are mirrored: `stride` keys on each
    side, every stride-th key and every block, before and after. `stride`: near the square root of max_length, as in
    the paper; `summary`: 8, the least of the paper, or `stride` where that is less. Decoding keeps all keys, and reads
    those of the pattern only. On a CPU C++ computes `fixed` by tiles, the summaries of all blocks first.
    """

    equation: ClassVar = (
        "o_i = sum_j softmax_j(q_i·k_j / sqrt(d)) v_j; strided: i - j <= l or (i - j) mod l = 0; "
        "fixed: j // l = i // l or j mod l >= l - c"
    )
    paper: ClassVar = "Child et al. 2019, Generating Long Sequences with Sparse Transformers, sec. 4.3 and 5.2"
    time: ClassVar = "O(N (l + N/l) d) strided, O(N (l + c N/l) d) fixed"
    memory: ClassVar = "O(N (l + N/l)) strided, O(N (l + c N/l)) fixed"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        pattern: Literal["strided", "fixed"] = "fixed",
        stride: Count | None = None,
        summary: Count | None = None,
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.pattern = pattern
        if pattern == "strided":
            self.drops_inside = frozenset()  # type: ignore[misc]
        self.stride = whole("stride", stride, round(math.sqrt(shape.max_length)))
        self.summary = whole("summary", summary, min(8, self.stride))
        if self.summary > self.stride:
            raise SelectionError(f"expected summary of at most stride {self.stride}, got {self.summary}")

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        at, key_at = at[:, None], torch.arange(keys, device=at.device)
        if self.pattern == "strided":
            near, far = (at - key_at).abs() <= self.stride, (at - key_at) % self.stride == 0
        else:
            near = at // self.stride == key_at // self.stride
            far = (key_at % self.stride >= self.stride - self.summary).expand_as(near)
        return ((near | far) & (key_at <= at) if causal else near | far)[None]

    def supports(self, shape: AttentionShape) -> str | None:
        if self.impl == "cpp" and self.pattern == "strided":
            return "impl=cpp computes pattern=fixed only: every stride-th key touches every tile"
        return super().supports(shape)

    def key_order(self, keys: int) -> Tensor:
        is_summary = torch.arange(keys) % self.stride >= self.stride - self.summary
        return torch.cat([is_summary.nonzero()[:, 0], (~is_summary).nonzero()[:, 0]])

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
        device = query.device
        reach = self.stride if self.pattern == "strided" else 0
        band = Band.fit(length, self.stride, reach, 0 if mask.causal else reach)
        allowed = band.allowed(mask.valid, mask.causal, device)
        if self.pattern == "strided":
            query_at, key_at = band.at(device)
            allowed = allowed & ((key_at - query_at).abs() <= self.stride)
        blocks = band.split(scaled(query, query.shape[-1] ** -0.5))
        # the near part: a band of blocks around the own one, or the own block alone
        near = blocks @ band.spans(key).to(blocks.dtype).transpose(-2, -1)
        far, far_allowed, mix = (self._strided if self.pattern == "strided" else self._fixed)(
            band, blocks, key, value, mask
        )
        # both parts share one softmax, so they are masked before they are joined
        lowest = torch.finfo(near.dtype).min
        joined = torch.cat([near.masked_fill(~allowed, lowest), far.masked_fill(~far_allowed, lowest)], -1)
        weights = masked_softmax(joined, None)
        kept = band.kept(drop, batch, heads, missing)
        if drop is None or kept is None:
            weights = F.dropout(weights, self.weight_dropout)
        else:
            # of `fixed`: behind the own block the summaries of all
            rows = torch.arange(band.blocks * band.block).view(1, band.blocks, band.block, 1) - missing
            first = max(0, band.block - self.summary)
            starts = torch.arange(band.blocks).view(1, 1, 1, -1) * band.block + first
            far_kept = drop.kept(batch, heads, rows, band.block - first, starts).mask.flatten(-2)
            weights = replace(kept, mask=torch.cat([kept.mask, far_kept], -1)).apply(weights)
        # the two parts have the same softmax and meet different values
        near, far = weights[..., : near.shape[-1]], weights[..., near.shape[-1] :]
        # a row without a key has uniform weights after the softmax, since all were at the lowest number: zeroed here
        output = near.masked_fill(~allowed, 0.0).to(value.dtype) @ band.spans(value)
        return band.merge(output + mix(far.masked_fill(~far_allowed, 0.0).to(value.dtype)))

    def _strided(self, band: Band, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Far:
        """Far part of `strided`: keys at the same place in other blocks, (…, blocks, stride, blocks)."""
        # every stride-th key is the same place of every block: transposed, those keys are one contiguous matrix
        columns, values = band.split(key).transpose(2, 3), band.split(value).transpose(2, 3)
        scores = query.transpose(2, 3) @ columns.to(query.dtype).transpose(-2, -1)
        number = torch.arange(band.blocks, device=query.device)
        # the neighbouring blocks are at one stride, which the near part has
        apart = number[:, None] - number
        allowed = (apart >= 2 if mask.causal else apart.abs() >= 2)[:, None, :]
        allowed = allowed & _real(band, mask.valid, query.device).transpose(2, 3)[:, :, None]
        return scores.transpose(2, 3), allowed, lambda weights: (weights.transpose(2, 3) @ values).transpose(2, 3)

    def _fixed(self, band: Band, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Far:
        """Far part of `fixed`: last keys of other blocks, (…, blocks, stride, blocks · summary)."""
        first = max(0, band.block - self.summary)
        keys = band.split(key)[:, :, :, first:].flatten(2, 3)
        values = band.split(value)[:, :, :, first:].flatten(2, 3)
        # the summaries are the same for all queries, so one product serves the whole sequence
        scores = query.flatten(2, 3) @ keys.to(query.dtype).transpose(-2, -1)
        number = torch.arange(band.blocks, device=query.device)
        other = (number < number[:, None] if mask.causal else number != number[:, None])[:, :, None]
        other = other.expand(-1, -1, band.block - first).flatten(1)
        real = _real(band, mask.valid, query.device)[:, :, :, first:].flatten(2)
        allowed = other[:, None, :] & real[:, :, None, None, :]
        size = (band.blocks, band.block, -1)
        return (
            scores.reshape(*query.shape[:2], *size),
            allowed,
            lambda weights: (weights.flatten(2, 3) @ values).reshape(*query.shape[:2], *size),
        )

    def entries(self, length: int, causal: bool) -> int:
        total = 0
        stride = self.stride
        for at in range(length):
            if self.pattern == "strided":
                back = min(at, stride) + max(0, at // stride - 1)
                ahead = min(length - 1 - at, stride) + max(0, (length - 1 - at) // stride - 1)
                total += back + 1 + (0 if causal else ahead)
                continue
            block, within = divmod(at, stride)
            if causal:
                total += within + 1 + block * self.summary
                continue
            full, tail = divmod(length, stride)
            summaries = full * self.summary + max(0, tail - stride + self.summary)
            own = stride if block < full else tail
            total += own + summaries - max(0, own - stride + self.summary)
        return total

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: KeyValueCache | None = None
    ) -> tuple[Tensor, KeyValueCache]:
        cache = state or KeyValueCache.empty(key, value)
        keys, values = cache.append(key, value)
        seen = self._seen(cache.length - 1, query.device)
        output = attend(
            query,
            keys[:, :, seen],
            values[:, :, seen],
            None,
            scale=query.shape[-1] ** -0.5,
            dropout=self.weight_dropout,
        )
        return output, cache

    def _seen(self, at: int, device: torch.device) -> Tensor:
        """The keys that the query at position `at` sees when causal."""
        stride = self.stride
        if self.pattern == "strided":
            # from the same place in the first block on, up to what the near part has
            far = torch.arange(at % stride, max(at % stride, at - 2 * stride + 1), stride, device=device)
            return torch.cat([far, torch.arange(max(0, at - stride), at + 1, device=device)])
        start = at // stride * stride
        ends = torch.arange(0, start, stride, device=device)[:, None]
        far = ends + torch.arange(stride - self.summary, stride, device=device)
        return torch.cat([far.flatten(), torch.arange(start, at + 1, device=device)])


def _real(band: Band, valid: Tensor | None, device: torch.device) -> Tensor:
    """(batch | 1, 1, blocks, block), True = a real key."""
    real = torch.arange(band.blocks * band.block, device=device)[None] < band.length
    if valid is not None:
        real = F.pad(valid, (0, band.blocks * band.block - band.length))
    return real.view(real.shape[0], 1, band.blocks, band.block)
