"""Relative positions as vectors added to keys and values."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Mask, ScoredVariant, SelectionError, Width, accumulator
from ..kernels.dispatch import DROPPING, choose_implementation, refusal
from ..ops.bands import scaled
from ..ops.dropout import WeightDropout


class Relative(ScoredVariant):
    """Relative position representations: a vector for each clipped distance, added to keys and to values.

    Tables (2 clip + 1, head_dim), one per layer and shared over heads; row c = clip(j - i, -clip, clip) + clip for
    query i and key j, so row 0 is the far past (some public code mirrors this). `values=false` leaves out the table of
    the values. Keys: Q times the table, then each pair picks its distance; values: weights summed by distance, then
    times the table. Nothing of size queries by keys by head_dim exists.
    In cross attention both sequences begin at position 0, so that padding after the keys moves no distance. `impl`:
    auto takes C++ on a CPU and Triton's kernels on a GPU where they can run, eager otherwise; `flex` is PyTorch's
    FlexAttention, which needs values=false and no dropout; eager is the definition, and drops weights by the mask of
    the kernels.
    """

    simplex: ClassVar = True
    brings_positions = True
    drops_inside: ClassVar = DROPPING
    equation: ClassVar = "s_ij = q_i·(k_j + a_c) / sqrt(d); P = softmax(s); o_i = sum_j P_ij (v_j + b_c)"
    paper: ClassVar = "Shaw et al. 2018, Self-Attention with Relative Position Representations, eq. 3-5"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        clip: Width = 16,
        values: bool = True,
        impl: Literal["auto", "eager", "cpp", "triton", "flex"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl
        if clip < 1:
            raise SelectionError(f"relative: expected clip to be at least 1, got {clip}; use softmax for no positions")
        self.clip = clip
        self.key_table = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * clip + 1, shape.head_dim)))
        self.value_table = None
        if values:
            self.value_table = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * clip + 1, shape.head_dim)))

    def supports(self, shape: AttentionShape) -> str | None:
        if self.impl == "flex" and self.value_table is not None:
            return "impl=flex cannot add vectors to values: use impl=triton, or values=false"
        return super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """q_i·(k_j + a_c) / sqrt(d), (batch, heads, queries, keys)."""
        dtype = accumulator(query.dtype)
        query = query.to(dtype) * query.shape[-1] ** -0.5
        by_distance = query @ self.key_table.to(dtype).T
        # q (k + a) = q k + q a: the vectors meet the query, never each pair
        return query @ key.to(dtype).transpose(-2, -1) + spread(by_distance, first, key.shape[2])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(
            *(self.impl, query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            kernels=DROPPING,
        )
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if self.implementation != "eager":
            return self._fused(query, key, value, mask, drop)
        weights = self.weights(query, key, mask)
        weights = weights if drop is None else drop.apply(weights)
        output = weights.to(value.dtype) @ value
        # weights after dropout, summed by distance: sum p (v + b) = sum p v + sum p b
        offset, has_values = mask.offset(query.shape[2], key.shape[2]), self.value_table is not None
        by_distance = collect(weights, offset, self.clip) if has_values else None
        return self._with_values(output, by_distance).to(value.dtype)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, drop: WeightDropout | None) -> Tensor:
        """Compute q·r for every distance r, (queries, 2 clip + 1), once; the kernel gathers from it by distance."""
        queries, keys, scale = query.shape[2], key.shape[2], query.shape[-1] ** -0.5
        offset = mask.offset(queries, keys)
        if self.implementation == "cpp":
            from ..kernels.cpu.tiles import softmax_by_distance

            products = query.float() @ self.key_table.float().T
            collect = self.value_table is not None
            output, by_distance = softmax_by_distance(
                *(query, key, value, mask, products, drop), back=self.clip, offset=offset, collect=collect
            )
            return self._with_values(output, by_distance).to(value.dtype)
        at = torch.arange(queries, device=query.device, dtype=torch.int32)
        # full attention is the interval of all keys, a causal mask one that grows by a key
        upper = (at + offset + 1).clamp(0, keys) if mask.causal else torch.full_like(at, keys)
        lower = torch.zeros_like(at)
        bias = scaled(query, scale) @ self.key_table.to(accumulator(query.dtype)).T
        if self.implementation == "flex":
            from ..kernels.gpu import flex_interval_attention

            return flex_interval_attention(
                query, key, value, lower, upper, mask.valid, scale=scale, bias=bias, back=self.clip, offset=offset
            )
        from ..kernels.gpu import Intervals, interval_attention

        output, by_distance = interval_attention(
            query,
            key,
            value,
            Intervals(lower=lower[None], upper=upper[None], offset=offset),
            mask.valid,
            scale=scale,
            bias=bias,
            back=self.clip,
            collect=self.value_table is not None,
            drop=drop,
        )
        return self._with_values(output, by_distance).to(value.dtype)

    def _with_values(self, output: Tensor, by_distance: Tensor | None) -> Tensor:
        """Sums of values, and of their vectors by the weights of each distance."""
        if self.value_table is None or by_distance is None:
            return output
        return output + by_distance @ self.value_table.to(by_distance.dtype)


def spread(by_distance: Tensor, first: int, keys: int) -> Tensor:
    """(batch, heads, queries, keys) of (batch, heads, queries, 2 clip + 1): each pair takes the entry of its distance.

    `first` is the position of the first query among the keys. Its gradient is `collect`, and the other way round.
    """
    return cast(Tensor, _Spread.apply(by_distance, first, keys))  # type: ignore[no-untyped-call]


def collect(weights: Tensor, first: int, clip: int) -> Tensor:
    """(batch, heads, queries, 2 clip + 1) from (batch, heads, queries, keys): sums by clipped distance."""
    return cast(Tensor, _Collect.apply(weights, first, clip))  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """A gather with its own gradient, since PyTorch's adds in an order that differs from run to run on a GPU."""

    @staticmethod
    def forward(ctx: Any, by_distance: Tensor, first: int, keys: int) -> Tensor:
        ctx.first, ctx.clip = first, by_distance.shape[-1] // 2
        distance = _distances(by_distance.shape[-2], keys, first, by_distance.device).clamp_(-ctx.clip, ctx.clip)
        return by_distance.gather(-1, (distance + ctx.clip).expand(*by_distance.shape[:-1], keys))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return collect(gradient, ctx.first, ctx.clip), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, first: int, clip: int) -> Tensor:
        queries, ctx.keys = weights.shape[-2:]
        ctx.first = first
        near = torch.arange(queries, device=weights.device)[:, None] + torch.arange(
            first - clip + 1, first + clip, device=weights.device
        )
        # distances short of the clip belong to one key each, where it exists
        inside = (near >= 0) & (near < ctx.keys)
        index = near.clamp(0, ctx.keys - 1).expand(*weights.shape[:-1], near.shape[-1])
        middle = weights.gather(-1, index).masked_fill_(~inside, 0.0)
        distance = _distances(queries, ctx.keys, first, weights.device)
        # the two ends take all that is clipped to them
        before = weights.masked_fill(distance > -clip, 0.0).sum(-1, keepdim=True)
        after = weights.masked_fill(distance < clip, 0.0).sum(-1, keepdim=True)
        return torch.cat([before, middle, after], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return spread(gradient, ctx.first, ctx.keys), None, None


def _distances(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    """j - i, (queries, keys)."""
    at = torch.arange(first, first + queries, device=device)
    return torch.arange(keys, device=device) - at[:, None]
