"""Linformer: keys and values projected along the sequence to a fixed number of rows."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Unsupported, Variant, Width, accumulator


class Linformer(Variant):
    """Softmax attention over `k` learned mixtures of the keys.

    Padded keys and values are zeroed *before* they are mixed; released codes mask nothing. A shorter sequence uses the
    first columns of the projections; a longer one than `max_length` raises Unsupported. `sharing`: `headwise`, one pair
    of projections for all heads; `key-value`, one projection for all; `separate`, a pair for each head. The softmax
    runs over all k mixtures, real or not, so weights on keys have no meaning.

    The density counts the N k scores.
    """

    kind: ClassVar = "approximate"
    causality: ClassVar = None
    equation: ClassVar = "O = softmax(Q (E K)^T / sqrt(d)) F V; E, F of k x N"
    paper: ClassVar = "Wang et al. 2020, Linformer, eq. 7"
    time: ClassVar = "O(N k d)"
    memory: ClassVar = "O(N k)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        k: Width = 128,
        sharing: Literal["separate", "headwise", "key-value"] = "headwise",
    ):
        super().__init__(shape)
        self.k = k
        heads = shape.heads if sharing == "separate" else 1
        self.mix_keys = nn.Parameter(torch.randn(heads, k, shape.max_length) * k**-0.5)
        self.mix_values = (
            self.mix_keys if sharing == "key-value" else nn.Parameter(torch.randn(heads, k, shape.max_length) * k**-0.5)
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        keys, longest = key.shape[2], self.shape.max_length
        if mask.causal:
            raise Unsupported("linformer mixes all keys, so it has no causal form")
        if keys > longest:
            raise Unsupported(f"expected at most {longest} keys, got {keys}: build linformer for a longer length")
        dtype = accumulator(query.dtype)
        key, value_ = key.to(dtype), value.to(dtype)
        if mask.valid is not None:
            # before the mixing: afterwards no column is a key any more
            absent = ~mask.valid[:, None, :, None]
            key, value_ = key.masked_fill(absent, 0.0), value_.masked_fill(absent, 0.0)
        # a shorter sequence takes the first columns, so that padding behind it changes nothing
        mixed_keys = self.mix_keys[..., :keys].to(dtype) @ key
        mixed_values = self.mix_values[..., :keys].to(dtype) @ value_
        scores = query.to(dtype) @ mixed_keys.transpose(-2, -1) * query.shape[-1] ** -0.5
        weights = F.dropout(scores.softmax(-1), self.weight_dropout)
        return (weights @ mixed_values).to(value.dtype)

    def density(self, shape: AttentionShape) -> float:
        return min(1.0, self.k / shape.max_length)
