"""Patterns: attention over a set of keys that the positions alone decide."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, SelectionError, Unsupported, Variant, repeat_heads
from ..mask import picked_range
from .bands import group_weights, scaled
from .relative_positions import RankPositions


class PatternVariant(Variant):
    """Softmax attention over the keys that `visible` names, computed by `blocked` from those keys alone.

    A subclass defines `visible` (what the pattern is), `blocked` (how it is computed) and `entries` (how many pairs it
    has). Queries and keys are one sequence; fewer queries than keys are its last positions.
    """

    crosses: ClassVar = False
    maps_products = True

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.positions: RankPositions | None = None

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        """Boolean (heads | 1, rows, keys): which keys the queries at positions `at` (rows) may see, padding apart."""
        raise TypeError(f"{type(self).__name__} defines no visible(at, keys, causal)")

    def blocked(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Output (batch, heads, length, head_dim) of queries and keys of equal length."""
        raise TypeError(f"{type(self).__name__} defines no blocked(query, key, value, mask)")

    def entries(self, length: int, causal: bool) -> float:
        """Pairs of query and key in the pattern, averaged over heads."""
        raise TypeError(f"{type(self).__name__} defines no entries(length, causal)")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        missing = absent(query, key)
        # the queries before the first are computed as zeros and dropped: blocks begin at position 0
        return self.blocked(F.pad(query, (0, 0, missing, 0)), key, value, mask)[:, :, missing:]

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        key = repeat_heads(key, query.shape[1])
        missing = absent(query, key)
        first, last = picked_range(rows, queries)
        at = torch.arange(first + missing, last + missing, device=query.device)
        # the definition itself, dense over the chosen rows: what `blocked` is compared with
        allowed = self.visible(at, keys, mask.causal)[None]
        if mask.valid is not None:
            allowed = allowed & mask.valid[:, None, None, :]
        picked, scale, bias = query[:, :, first:last], query.shape[-1] ** -0.5, None
        if self.positions is not None:
            # in a pattern of positions the rank of a key is its distance
            difference = torch.arange(keys, device=query.device) - at[:, None]
            bias = self.positions.pair_scores(scaled(picked, scale), difference)
        return group_weights(picked, key, allowed, scale=scale, bias=bias)

    def density(self, shape: AttentionShape) -> float:
        # what the mechanism computes over what full attention computes under the same mask
        return self.entries(shape.max_length, shape.causal) / pairs(shape.max_length, shape.causal)


def absent(query: Tensor, key: Tensor) -> int:
    """Number of positions by which queries start after the keys; raises Unsupported if they are more than the keys."""
    missing = key.shape[2] - query.shape[2]
    if missing < 0:
        raise Unsupported(
            f"queries and keys must be one sequence: expected at most {key.shape[2]} queries, got {query.shape[2]}"
        )
    return missing


def pairs(length: int, causal: bool) -> int:
    """Score entries that full attention computes."""
    return length * (length + 1) // 2 if causal else length * length


def whole(name: str, value: int | None, default: int, least: int = 1) -> int:
    """`value`, or `default` where it is None; raises SelectionError below `least`."""
    if value is None:
        return max(least, default)
    if value < least:
        raise SelectionError(f"expected {name} of at least {least}, got {value}")
    return value
