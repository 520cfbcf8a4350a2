"""A sink: a learned key without a value, which takes the weight that a query has no use for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Variant, Wrapper, repeat_heads


class Sink(Wrapper):
    """Put a learned key without a value before all keys, so that a head can give its weight to nothing.

    One key for each head of keys, seen by every query; its value is fixed at 0 (the paper's K biases). It starts at
    N(0, 1), alike in all heads: at 0 a sparse map of many keys would give it no weight, and so no gradient. It stands
    before maps of scores onto distributions, as in `sink+entmax15`; others have no sum that a sink could share. A
    sink with one score for all queries, as gpt-oss has it, is `softmax1[sink=learned]` or `window[sink=learned]`.
    """

    equation: ClassVar = "o = attention(q, [k_sink; k], [0; v])"
    paper: ClassVar = "Gu et al. 2024, When Attention Sink Emerges in Language Models (arXiv 2410.10781)"

    def __init__(self, shape: AttentionShape, inner: Variant):
        super().__init__(shape, inner)
        # one interval of keys cannot hold both the first key and a window
        self.takes_bounds = False  # type: ignore[misc]
        self.key = nn.Parameter(torch.randn(1, 1, shape.head_dim).repeat(shape.kv_heads, 1, 1))

    def supports(self, shape: AttentionShape) -> str | None:
        inner = self.inner
        if not (inner.simplex and inner.maps_products and inner.crosses):
            return "a sink takes its weight from keys that share a sum of one, and what it stands round is no such map"
        return super().supports(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return self.inner(query, *self._behind(key, value), _seen(mask))

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor | None:
        key, _ = self._behind(key, key)
        weights = self.inner.weights(query, key, _seen(mask), rows)
        return None if weights is None else weights[..., 1:]

    def state_bytes(self, shape: AttentionShape) -> int | None:
        return self.inner.state_bytes(replace(shape, max_length=shape.max_length + 1))

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if state is None:
            # the sink is a token before the first, of which nobody reads the output
            first, nothing = (x[:, :, :1] for x in self._behind(key, value))
            _, state = self.inner.step(query, first, nothing)
        return self.inner.step(query, key, value, state)

    def _behind(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (batch, heads | kv_heads, keys, head_dim), behind the sink."""
        sink = repeat_heads(self.key[None].to(key.dtype), key.shape[1]).expand(len(key), -1, -1, -1)
        return torch.cat([sink, key], 2), F.pad(value, (0, 0, 1, 0))


def _seen(mask: Mask) -> Mask:
    """`mask` of one key more in front, that all see; causal queries are aligned at the last key as before."""
    return mask if mask.valid is None else replace(mask, valid=F.pad(mask.valid, (1, 0), value=True))
