"""Shapes, inputs and masks of local, routing and patterned attention: two heads of width four, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.sparse.routing import Routing

HEADS, WIDTH = 2, 4


def shape(length: int = 40, heads: int = HEADS, **changes: Any) -> AttentionShape:
    return AttentionShape(heads=heads, head_dim=WIDTH, max_length=length, **changes)


def tensors(
    length: int,
    batch: int = 3,
    heads: int = HEADS,
    head_dim: int = WIDTH,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, length, head_dim, generator=generator, dtype=dtype) for _ in range(3)]


def padded_mask(length: int, causal: bool) -> Mask:
    """One full row, one with pads at the start, in the middle and at the end, one of nothing but pads."""
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[1, length // 2 :: 3] = valid[1, :2] = valid[1, -1:] = False
    valid[2] = False
    return Mask(valid, causal)


def routing(length: int = 40, seed: int = 0, **parameters: Any) -> Routing:
    torch.manual_seed(seed)
    causal = parameters.pop("causal", False)
    return Routing(shape(length, causal=causal), **parameters).double().eval()


def layer_norm(vector: Tensor) -> Tensor:
    away = vector - vector.mean()
    return away / torch.sqrt((away * away).mean() + 1e-6)
