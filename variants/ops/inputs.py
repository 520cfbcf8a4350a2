"""Inputs of attention: their shapes, which compiled code does not check."""

from __future__ import annotations

from torch import Tensor

from ..contract import SelectionError
from ..padding import check_mask


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, *, one_width: bool = False, grouped: bool = False
) -> None:
    """Raises SelectionError for a key, value or mask that does not fit the query, (batch, heads, queries, head_dim).

    `one_width`: values must be as wide as keys. `grouped`: keys and values may have fewer heads, which divide those of
    the query.
    """
    batch, heads, _, head_dim = query.shape
    if grouped and key.dim() == 4 and key.shape[1] and heads % key.shape[1] == 0:
        heads = key.shape[1]
    if key.shape != (batch, heads, key.shape[2], head_dim):
        expected = f"({batch}, {heads}, keys, {head_dim})"
        raise SelectionError(f"expected a key {expected} beside the query, got {tuple(key.shape)}")
    keys = key.shape[2]
    if value.shape != (batch, heads, keys, head_dim if one_width else value.shape[3]):
        expected = f"({batch}, {heads}, {keys}, {head_dim if one_width else 'head_dim'})"
        raise SelectionError(f"expected a value {expected} beside the key, got {tuple(value.shape)}")
    if valid is not None:
        check_mask(valid, batch, keys)
