"""Stick-breaking attention: each key, the nearest first, takes a share of what is left of a row's weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, ScoredVariant
from ..mask import picked_range


class StickBreaking(ScoredVariant):
    """Stick-breaking attention: from a query back, each key takes the share sigmoid(s) of what the later ones left.

    Near keys come first, so that the order of tokens shows without an encoding of positions. A row sums to less than
    one; the rest is given to nobody. A query does not see its own key, as in the paper and its code; with `own=true`
    it is the first to take. Causal only.
    """

    simplex: ClassVar = False
    crosses: ClassVar = False
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    maps_products = True
    equation: ClassVar = "P_ij = b_ij prod_{j < l < i} (1 - b_il), b = sigmoid(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = (
        "Tan, Shen, Yang, Courville & Panda 2024, Scaling Stick-Breaking Attention (arXiv 2410.17980), section 2"
    )

    def __init__(self, shape: AttentionShape, *, own: bool = False):
        super().__init__(shape)
        self.own = own

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "it goes from a query back, so it needs the causal form"
        return refused

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        allowed = mask.allowed(queries, keys, query.device, rows)
        assert allowed is not None
        first, last = picked_range(rows, queries)
        if not self.own:
            at = torch.arange(first, last, device=query.device) + mask.offset(queries, keys)
            allowed = allowed & (torch.arange(keys, device=query.device) != at[:, None])
        return self.weigh(self.score(query[:, :, first:last], key), allowed)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        # of the logarithms, since a product of thousands of shares leaves the range of float32
        left = -F.softplus(scores)
        if allowed is not None:
            left = left.masked_fill(~allowed, 0.0)
        # summed from the last key on, and less the key's own
        after = left.flip(-1).cumsum(-1).flip(-1) - left
        weights = (F.logsigmoid(scores) + after).exp()
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)
