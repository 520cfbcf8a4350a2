"""No attention: each position keeps its own value. The baseline that tells what attention adds."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..contract import AttentionShape, Mask, Unsupported, Variant, accumulator, repeat_heads


class NoAttention(Variant):
    """Identity in place of attention: the output of a position is its own value, so that nothing moves between tokens.

    A model with it is a network applied to each token by itself; what other mechanisms reach beyond it is due to
    attention. The projections of queries and keys stay in the model, untrained. Without parameters and without state.
    """

    uses_dropout = False
    ignores = frozenset({"query", "key"})
    # nothing of them is read, a bias neither: as a baseline it stands beside every choice of positions
    maps_products = True
    crosses: ClassVar = False
    simplex: ClassVar = True
    equation: ClassVar = "O = V"
    paper: ClassVar = "none: the baseline without attention"
    time: ClassVar = "O(N d)"
    memory: ClassVar = "O(1)"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        first = _first(query.shape[2], key.shape[2], mask)
        if mask.valid is not None:
            value = value.masked_fill(~mask.valid[:, None, :, None], 0.0)
        return value[:, :, first:]

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        at = torch.arange(_first(queries, keys, mask), keys, device=query.device)[rows or slice(None)]
        own = at[:, None] == torch.arange(keys, device=query.device)
        weights = (own & mask.real(key)[:, None, None, :]).to(accumulator(query.dtype))
        return weights.expand(-1, query.shape[1], -1, -1)

    def density(self, shape: AttentionShape) -> float:
        """One key for each query, of all that are allowed."""
        return min(1.0, 2 / (shape.max_length + 1) if shape.causal else 1 / shape.max_length)

    def state_bytes(self, shape: AttentionShape) -> int:
        return 0

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, None]:
        """Decode one token; there is nothing to remember."""
        return repeat_heads(value, query.shape[1]), None


def _first(queries: int, keys: int, mask: Mask) -> int:
    """Position of the first query among the keys; fewer causal queries are the last ones."""
    if queries > keys or (queries < keys and not mask.causal):
        raise Unsupported(f"no-attention: expected one sequence, got {queries} queries and {keys} keys")
    return keys - queries
