"""Padding: slots of a batch that hold no token, whose contents must leave no trace."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bench.core.errors import SelectionError

LARGEST = 1e4
"""Entries of padded slots up to this size do no harm under a weight of zero: products and squares are finite."""


def check_mask(valid: Tensor, batch: int, keys: int) -> None:
    """Raises SelectionError for a mask that is not bool (batch, keys), or (1, keys) for all sequences."""
    if valid.dtype != torch.bool or valid.shape not in ((batch, keys), (1, keys)):
        found = f"{str(valid.dtype).removeprefix('torch.')} {tuple(valid.shape)}"
        raise SelectionError(f"expected a mask bool ({batch}, {keys}), True for a real key, got {found}")


def clear_padding(
    query: Tensor, key: Tensor, value: Tensor, valid: Tensor, *, same_sequence: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each (batch, heads, length, width), without what a weight of zero does not stop.

    Padded slots that hold an entry which is not finite, or above LARGEST, become zeros, with a gradient of zero. Zero
    times NaN is NaN: in the sum of values, and from padded queries in the gradients of real keys. `valid`: (batch,
    keys), True = a real key. Queries of the `same_sequence` are padded where their keys are, and fewer of them are its
    last positions; other queries are all real.
    """
    check_mask(valid, key.shape[0], key.shape[2])
    padded = ~valid.expand(key.shape[0], -1)
    slots = {"key": (key, padded), "value": (value, padded)}
    if same_sequence:
        slots["query"] = (query, padded[:, key.shape[2] - query.shape[2] :])
    # on a CPU it costs a tenth to ask than to copy; on a GPU the answer would have to be waited for
    if query.device.type == "cpu" and not torch.compiler.is_compiling() and all(map(_are_tame, slots.values())):
        return query, key, value
    cleared = {name: _cleared(x, at) for name, (x, at) in slots.items()}
    return cleared.get("query", query), cleared["key"], cleared["value"]


def clear_queries(x: Tensor, valid: Tensor) -> Tensor:
    """Clear what belongs to queries of the same sequence, as `clear_padding` does: (batch, heads, queries, width)."""
    padded = ~valid.expand(x.shape[0], -1)[:, valid.shape[1] - x.shape[2] :]
    return _cleared(x, padded)


def _are_tame(slots: tuple[Tensor, Tensor]) -> bool:
    """True if no padded slot, True in (batch, length), of (batch, heads, length, width) holds too large an entry."""
    x, padded = slots
    return bool((x.detach().transpose(1, 2)[padded].abs() <= LARGEST).all())


def _cleared(x: Tensor, padded: Tensor) -> Tensor:
    # a largest entry of NaN is not below any bound
    wild = ~(x.detach().abs().amax(-1, keepdim=True) <= LARGEST)
    return x.masked_fill(wild & padded[:, None, :, None], 0.0)
