"""Query-key norm: queries and keys are divided by their root mean square, so that scores stay of bounded size."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Variant, Wrapper, accumulator


class QueryKeyNorm(Wrapper):
    """Divide each query and key by its root mean square, before the scores, so that no score exceeds sqrt(d) g.

    `scale=head`: g is one number of each head, as in the paper, which normalises to length 1. `scale=dimension`: one
    for each dimension of queries and one of keys, which the heads share, as Qwen3 and Gemma 3 have it. They normalise
    before rotary positions, and a model here after: a number of each head changes nothing by that, one of each
    dimension does.
    """

    equation: ClassVar = "o = attention(g q / rms(q), k / rms(k), v)"
    paper: ClassVar = (
        "Henry et al. 2020, Query-Key Normalization for Transformers (arXiv 2010.04245); "
        "RMS form: Qwen Team 2025, Qwen3 (arXiv 2505.09388)"
    )

    def __init__(self, shape: AttentionShape, inner: Variant, *, scale: Literal["head", "dimension"] = "head"):
        super().__init__(shape, inner)
        # it would normalise the dimensions of a bias too
        self.maps_products = False
        by_head = scale == "head"
        self.query_scale = nn.Parameter(torch.ones((shape.heads, 1, 1) if by_head else (shape.head_dim,)))
        self.key_scale = None if by_head else nn.Parameter(torch.ones(shape.head_dim))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        return self.inner(_normed(query, self.query_scale), _normed(key, self.key_scale), value, mask, hidden)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor | None:
        query, key = _normed(query, self.query_scale), _normed(key, self.key_scale)
        return self.inner.weights_with(query, key, mask, rows, hidden)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return super().step(_normed(query, self.query_scale), _normed(key, self.key_scale), value, state, hidden)


def _normed(x: Tensor, scale: Tensor | None) -> Tensor:
    wide = x.to(accumulator(x.dtype))
    wide = F.rms_norm(wide, wide.shape[-1:], eps=1e-6)
    return (wide if scale is None else wide * scale.to(wide.dtype)).to(x.dtype)
