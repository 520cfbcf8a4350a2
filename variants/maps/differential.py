"""Differential attention: the difference of two softmax maps."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Variant, accumulator, masked_softmax, repeat_heads
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.dropout import WeightDropout
from ..ops.fused_softmax import fused_softmax

Impl = Literal["auto", "cpp", "sdpa", "eager"]
DROPPING = frozenset({"cpp"})


class Differential(Variant):
    """Differential attention: a second softmax map, times lambda, is subtracted from the first, so that noise cancels.

    Queries and keys of a head are split into two halves, one for each map; the values are whole. lambda = exp(a·b) -
    exp(c·d) + lambda_init with four learned vectors that the heads of a layer share, started at N(0, 0.1);
    lambda_init = 0.8 - 0.6 exp(-0.3 l) of layer l, from 0. Each head's output is divided by its root mean square, with
    a scale that the heads share, and multiplied by 1 - lambda_init. The paper halves the number of heads, so that its
    maps are as wide as those of a plain head; here the heads are those of the model, so that maps are half as wide.
    The halves keep the pairs of dimensions together that rotary positions turn, neighbours or half a head apart.

    `impl`: auto takes C++ on a CPU, PyTorch's fused kernels elsewhere (`sdpa`); eager is the definition. Dropout falls
    on each map by itself, by the mask of the kernels, of `sdpa` by its own.
    """

    simplex: ClassVar = False
    drops_inside: ClassVar = DROPPING
    equation: ClassVar = (
        "P = softmax(Q1 K1^T / sqrt(d/2)) - lambda softmax(Q2 K2^T / sqrt(d/2)); O = (1 - lambda_init) RMSNorm(P V)"
    )
    paper: ClassVar = "Ye et al. 2024, Differential Transformer (arXiv 2410.05258), eq. 1-3"

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.start = 0.8 - 0.6 * math.exp(-0.3 * shape.layer)
        # a, b, c, d
        self.vectors = nn.Parameter(torch.empty(4, shape.head_dim // 2).normal_(0.0, 0.1))
        self.norm = nn.Parameter(torch.ones(shape.head_dim))

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.head_dim % 4:
            return f"it halves the pairs of dimensions, so head_dim must be a multiple of 4, not {shape.head_dim}"
        return super().supports(shape) or maps_refusal(self.impl, shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        dtype = accumulator(value.dtype)
        # two maps of half the width are twice as many heads
        both, self.implementation = softmax_maps(
            *(self.impl, _halves(query), _halves(key), torch.cat([value, value], 1), mask, self.weight_dropout)
        )
        first, second = both.chunk(2, 1)
        difference = first.to(dtype) - self._factor(dtype) * second.to(dtype)
        normed = F.rms_norm(difference, difference.shape[-1:], self.norm.to(dtype), eps=1e-5)
        return ((1.0 - self.start) * normed).to(value.dtype)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        """The difference of both maps, before the norm: rows sum to 1 - lambda, and weights may be negative."""
        first, second = self._maps(query, repeat_heads(key, query.shape[1]), mask, rows)
        return first - self._factor(first.dtype) * second

    def _maps(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> tuple[Tensor, Tensor]:
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device, rows)
        query = query if rows is None else query[:, :, rows]
        dtype = accumulator(query.dtype)
        q, k = _halves(query.to(dtype)), _halves(key.to(dtype))
        weights = masked_softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, allowed)
        first, second = weights.chunk(2, 1)
        return first, second

    def _factor(self, dtype: torch.dtype) -> Tensor:
        a, b, c, d = self.vectors.to(dtype)
        factor: Tensor = (a @ b).exp() - (c @ d).exp() + self.start
        return factor


def _halves(x: Tensor) -> Tensor:
    """(batch, heads, n, d) -> (batch, 2 heads, n, d / 2): the first halves of all heads, then the second ones.

    A half is a quarter of the first dimensions and the same quarter of those d / 2 further on.
    """
    quarters = torch.unflatten(x, -1, (2, 2, x.shape[-1] // 4))
    return torch.cat([half.flatten(-2) for half in quarters.unbind(-2)], 1)


def maps_refusal(impl: Impl, shape: AttentionShape) -> str | None:
    """None, or why `softmax_maps` cannot do the shape by an `impl` that is asked for."""
    return None if impl == "sdpa" else refusal(impl, shape, dropping=DROPPING)


def softmax_maps(
    impl: Impl, query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float
) -> tuple[Tensor, str]:
    """softmax(Q K^T / sqrt(d)) V, (batch, heads, queries, value_dim), and the code that ran.

    query, key: (batch, heads | kv_heads, queries | keys, d); value: (batch, kv_heads, keys, value_dim). dropout: of the
    weights, by the common mask but for `sdpa`. Raises Unsupported as `choose_implementation` does.
    """
    ran: str = impl
    if impl != "sdpa":
        given = {"dropout": dropout, "dropping": DROPPING, "bounds": mask.bounds is not None, "kernels": DROPPING}
        ran = choose_implementation(impl, query, key, value, **given)  # type: ignore[arg-type]
    if ran == "sdpa" or (impl == "auto" and ran == "eager"):
        # PyTorch fuses nothing of two widths: zeros make keys as wide as values, and the factor keeps the scale
        width = query.shape[-1]
        if padding := max(0, value.shape[-1] - width):
            query, key = F.pad(query * math.sqrt((width + padding) / width), (0, padding)), F.pad(key, (0, padding))
        return fused_softmax(query, key, value, mask, dropout)
    drop = WeightDropout.drawn(dropout, query.device)
    if ran == "cpp":
        from ..kernels.cpu.tiles import softmax_attention

        return softmax_attention(query, key, value, mask, drop), ran
    allowed, dtype = mask.allowed(query.shape[2], key.shape[2], query.device), accumulator(query.dtype)
    key, value = (repeat_heads(x, query.shape[1]).to(dtype) for x in (key, value))
    weights = masked_softmax(query.to(dtype) @ key.transpose(-2, -1) * query.shape[-1] ** -0.5, allowed)
    return (weights if drop is None else drop.apply(weights)) @ value, ran
