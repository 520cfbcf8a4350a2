"""Differential attention, second version: two queries of one head share its keys and values."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Mask, ScoredVariant, SelectionError, accumulator
from ..ops.projection import projected
from .differential import DROPPING, Impl, maps_refusal, softmax_maps


class DifferentialV2(ScoredVariant):
    """Subtract from each head's attention that of a second query over the same keys and values, times a gate.

    The gate is sigmoid(l x) of each token and head, x its hidden state. Against the first version: the maps are as wide
    as the head, lambda is projected, and nothing is normalised. The second query is W x, by parameters of this variant,
    as many as those of the first; where a model has rotary positions the first is turned by them and the second is not.

    `impl` and dropout are as of `differential`.
    """

    takes_hidden = True
    simplex: ClassVar = False
    drops_inside: ClassVar = DROPPING
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    equation: ClassVar = "P = softmax(Q K^T / sqrt(d)) - sigmoid(l x_i) softmax((W X) K^T / sqrt(d)); O = P V"
    paper: ClassVar = (
        "Ye, Dong, Sun & Wei 2026, Differential Transformer V2 (huggingface.co/blog/microsoft/diff-attn-v2); "
        "code: microsoft/unilm, Diff-Transformer-V2"
    )

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.second_query = nn.Linear(shape.hidden_width, shape.width, bias=False)
        self.share = nn.Linear(shape.hidden_width, shape.heads, bias=False)

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or maps_refusal(self.impl, shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        dtype = accumulator(value.dtype)
        output, self.implementation = softmax_maps(
            *(self.impl, self._queries(query, hidden), key, value, mask, self.weight_dropout)
        )
        first, second = torch.unflatten(output.to(dtype), 1, (-1, 2)).unbind(2)
        return (first - self._share(hidden, dtype) * second).to(value.dtype)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor:
        """The difference of both maps: weights may be negative, and a row sums to one less its share."""
        if hidden is None:
            raise SelectionError("differential-v2 takes the hidden state: expected hidden, got None")
        maps = super().weights(self._queries(query, hidden), key, mask, rows)
        first, second = torch.unflatten(maps, 1, (-1, 2)).unbind(2)
        return first - self._share(hidden, first.dtype)[:, :, rows or slice(None)] * second

    def _queries(self, query: Tensor, hidden: Tensor) -> Tensor:
        """(batch, 2 heads, queries, head_dim): the second query of a head behind its first, in the same group."""
        second = torch.unflatten(projected(self.second_query, hidden.to(query.dtype)), -1, (self.shape.heads, -1))
        return torch.stack([query, second.transpose(1, 2)], 2).flatten(1, 2)

    def _share(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """(batch, heads, queries, 1), in (0, 1)."""
        return projected(self.share, hidden.to(dtype)).sigmoid().transpose(1, 2)[..., None]
