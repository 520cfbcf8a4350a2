"""Rotations of pairs of dimensions, by positions (RoPE) or by angles that depend on the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0
"""The longest wavelength is about 2π times this many tokens (Su et al. 2021, section 3.2.2)."""


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """x, (…, d), with dimensions 2t and 2t + 1 turned by `angle`, (…, d / 2), in the dtype of x."""
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def angles_of_positions(first: int, length: int, width: int, like: Tensor) -> Tensor:
    """Angles (length, width / 2) of the positions from `first` on, on the device of `like`, in float32 at least."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = BASE ** (-torch.arange(0, width, 2, device=like.device, dtype=dtype) / width)
    return torch.arange(first, first + length, device=like.device, dtype=dtype)[:, None] * frequency
