"""Scalable softmax: the temperature follows the number of keys, so that attention does not flatten."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Mask, ScoredVariant, accumulator
from ..ops.log_length import log_length
from .differential import DROPPING, Impl, maps_refusal, softmax_maps


class ScalableSoftmax(ScoredVariant):
    """Scalable softmax: scores times s ln n, n the number of keys, s learned per head.

    Where attention is causal, n is the number of keys that the query may see plus one, i + 2 at position i from 0, as
    the code of ASEntmax has it; elsewhere it is the number of keys. s starts at N(1, 0.01). `bias=true` adds a number b
    per head to the factor, started at 0. The factor is one number a query, so it multiplies the query. `impl`: auto
    takes PyTorch's fused softmax (`sdpa`), but with dropout on a CPU, where that is not fused, C++; eager is the
    definition.
    """

    equation: ClassVar = "P = softmax((s ln(n) + b) Q K^T / sqrt(d)); O = P V; b = 0"
    paper: ClassVar = "Nakanishi 2025, Scalable-Softmax Is Superior for Attention"
    memory: ClassVar = "O(N d); eager O(N^2)"
    simplex: ClassVar = True
    maps_products = True
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    drops_inside: ClassVar = DROPPING

    def __init__(self, shape: AttentionShape, *, bias: bool = False, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.slope = nn.Parameter(torch.empty(shape.heads).normal_(1.0, 0.01))
        self.bias = nn.Parameter(torch.zeros(shape.heads)) if bias else None

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or maps_refusal(self.impl, shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        is_fused = self.impl == "auto" and not (self.weight_dropout and query.device.type == "cpu")
        scaled = self._scaled(query, key.shape[2], mask)
        # fused code takes one dtype; the definition rounds at its end alone
        scaled = scaled if self.impl == "eager" else scaled.to(query.dtype)
        output, self.implementation = softmax_maps(
            "sdpa" if is_fused else self.impl, scaled, key, value, mask, self.weight_dropout
        )
        return output.to(value.dtype)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(self._scaled(query, key.shape[2], mask), key, mask, rows)

    def _scaled(self, query: Tensor, keys: int, mask: Mask) -> Tensor:
        """The queries times s ln n + b, float32 or more."""
        wide = query.to(accumulator(query.dtype))
        # one s for each head; n is of each query, since causal rows and padding differ in it
        scaled = wide * self.slope.to(wide.dtype)[:, None, None] * log_length(mask, wide, keys, self.shape.causal)
        return scaled if self.bias is None else scaled + wide * self.bias.to(wide.dtype)[:, None, None]
