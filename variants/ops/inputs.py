"""Inputs of attention: their shapes, which compiled code does not check, and padded slots, which may hold anything."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import SelectionError


def check_inputs(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, *, one_width: bool = False) -> None:
    """Raises SelectionError for a key, value or mask that does not fit the query, (batch, heads, queries, head_dim).

    `one_width`: values must be as wide as keys.
    """
    batch, heads, _, head_dim = query.shape
    if key.shape != (batch, heads, key.shape[2], head_dim):
        expected = f"({batch}, {heads}, keys, {head_dim})"
        raise SelectionError(f"expected a key {expected} beside the query, got {tuple(key.shape)}")
    keys = key.shape[2]
    if value.shape != (batch, heads, keys, head_dim if one_width else value.shape[3]):
        expected = f"({batch}, {heads}, {keys}, {head_dim if one_width else 'head_dim'})"
        raise SelectionError(f"expected a value {expected} beside the key, got {tuple(value.shape)}")
    if keep is not None and (keep.dtype != torch.bool or keep.shape not in ((batch, keys), (1, keys))):
        found = f"{str(keep.dtype).removeprefix('torch.')} {tuple(keep.shape)}"
        raise SelectionError(f"expected a mask bool ({batch}, {keys}), True for a real key, got {found}")


def without_padding(x: Tensor, keep: Tensor | None) -> Tensor:
    """(batch, heads, keys, n) with zeros in padded slots, and a gradient of zero there; as it is without a mask.

    A weight of zero is not enough: times NaN or infinity it is NaN.
    """
    return x if keep is None else x.masked_fill(~keep[:, None, :, None], 0.0)
