"""The products of all variants: products of grouped heads, softmax under a mask, and the keys kept for decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..bench.core.errors import SelectionError


@dataclass(slots=True)
class KeyValueCache:
    """Keys and values seen so far, (batch, heads, length, head_dim), in buffers that double when full."""

    key: Tensor
    value: Tensor
    length: int = 0

    @classmethod
    def empty(cls, like: Tensor, value_like: Tensor, room: int = 64) -> KeyValueCache:
        """A cache for `room` tokens, in the dtypes and on the device of the first one, (batch, heads, 1, head_dim)."""
        return cls(
            like.new_empty(*like.shape[:2], room, like.shape[3]),
            value_like.new_empty(*value_like.shape[:2], room, value_like.shape[3]),
        )

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds (batch, heads, new, head_dim) and returns all keys and values so far."""
        end = self.length + key.shape[2]
        if end > self.key.shape[2]:
            # doubling makes about 2 n copies of tokens in all, growing by one would make n^2 / 2
            room = (0, 0, 0, max(end, 2 * self.key.shape[2]) - self.key.shape[2])
            self.key, self.value = F.pad(self.key, room), F.pad(self.value, room)
        self.key[:, :, self.length : end] = key
        self.value[:, :, self.length : end] = value
        self.length = end
        return self.key[:, :, :end], self.value[:, :, :end]


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values (batch, kv_heads, length, width) with each head repeated for its group: (batch, heads, …).

    As they are where they have so many heads already. Raises SelectionError where their heads do not divide `heads`.
    """
    own = x.shape[1]
    if own == heads:
        return x
    if heads % own:
        raise SelectionError(f"expected keys and values whose heads divide the {heads} of the queries, got {own}")
    return x.repeat_interleave(heads // own, 1)


def by_group(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, (batch, heads, rows, n) by (batch, kv_heads, n, columns), without a copy of right for each head."""
    heads, kv_heads = left.shape[1], right.shape[1]
    if heads == kv_heads:
        return left @ right
    if heads % kv_heads:
        raise SelectionError(f"expected keys and values whose heads divide the {heads} of the queries, got {kv_heads}")
    # the rows of a group of heads side by side are more rows of one product
    rows = left.reshape(left.shape[0], kv_heads, -1, left.shape[-1])
    return (rows @ right).view(*left.shape[:3], right.shape[-1])


def no_output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An output of zeros, (batch, heads, queries, width of value), through which gradients are zeros."""
    # sums over no entry: zero whatever the inputs hold, and part of the graph
    nothing = query[..., :0].sum() + key[..., :0].sum() + value[..., :0].sum()
    return value.new_zeros(*query.shape[:3], value.shape[-1]) + nothing.to(value.dtype)


def masked_softmax(scores: Tensor, allowed: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over the allowed entries; zeros, with zero gradient, where nothing is allowed."""
    if allowed is None:
        return scores.softmax(dim)
    # not -inf: on a row without an allowed key that is NaN, forward and in the gradient
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~allowed, lowest).softmax(dim)
    # such a row is uniform now; the fill makes it zero, and its gradient too
    return weights.masked_fill(~allowed, 0.0)


def allowed_keys(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Number of keys that each query may see, broadcastable to (batch, heads, queries, 1), in the dtype of `scores`."""
    if allowed is None:
        return scores.new_full((1, 1, 1, 1), scores.shape[-1])
    # a mask may have one column for all keys
    return allowed.expand(*allowed.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(scores.dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores and sums are kept: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
