"""Chunks: a sequence cut into buckets, runs of one size, for mechanisms that attend within pairs of them.

Density counts the 2 N c entries that such a pass computes for buckets of c, masked or not.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape


def cut(x: Tensor, size: int, dim: int) -> Tensor:
    """(…, n, …) -> (…, buckets, size, …) at a dimension counted from the front; zeros or False fill the last bucket."""
    # pad counts from the last dimension
    missing = -x.shape[dim] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing))
    return torch.unflatten(x, dim, (x.shape[dim] // size, size))


def with_previous(x: Tensor, dim: int) -> Tensor:
    """(…, buckets, size, …) -> (…, buckets, 2 size, …): the bucket before (zeros or False at the first), itself."""
    count = x.shape[dim]
    # zeros, and a mask of False, before the first: released codes wrap around, which lets the end into the beginning
    before = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, count - 1)], dim)
    return torch.cat([before, x], dim + 1)


def paired_density(shape: AttentionShape, size: int, rounds: int = 1) -> float:
    """Entries computed by `rounds` passes over pairs of buckets, over those allowed, at most 1."""
    length = shape.max_length
    allowed = length * (length + 1) / 2 if shape.causal else length**2
    return min(1.0, rounds * 2 * length * size / allowed)
