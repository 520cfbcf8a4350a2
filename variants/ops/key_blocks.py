"""Blocks of keys, each in the place of its mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import accumulator


def block_means(key: Tensor, real: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Means of the real keys of each block, (batch, heads, blocks, width), and how many they are, (batch, blocks).

    key: (batch, heads, keys, width); real: (batch, keys). Blocks of `size` begin at key 0; the last may be shorter. The
    mean of a block without real keys is zero. Float32 or more.
    """
    short = -key.shape[2] % size
    held = torch.unflatten(F.pad(real, (0, short)), 1, (-1, size))
    kept = key.to(accumulator(key.dtype)).masked_fill(~real[:, None, :, None], 0.0)
    sums = torch.unflatten(F.pad(kept, (0, 0, 0, short)), 2, (-1, size)).sum(3)
    counts = held.sum(-1)
    return sums / counts.clamp(min=1)[:, None, :, None], counts
