"""Matched parameters: the variant as it is, in a layer of as many parameters as that of softmax."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..contract import Mask, Wrapper


class MatchedParameters(Wrapper):
    """Leave the variant as it is; the feed-forward behind it gives up the parameters that the variant adds.

    Where a layer with projections of its own has fewer parameters than the model's, the feed-forward gets more.
    """

    matches_parameters = True
    equation: ClassVar = "the variant's own"
    paper: ClassVar = "none: a comparison at equal size"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        return self.inner(query, key, value, mask, hidden)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor | None:
        return self.inner.weights_with(query, key, mask, rows, hidden)
