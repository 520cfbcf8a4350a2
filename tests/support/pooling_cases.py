"""Inputs, variants and the average by explicit loops for the tests of pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants import AttentionShape, build

HEADS, DIM = 2, 4


def make(selection: str, **shape: Any) -> Any:
    """A float64 variant with every parameter drawn anew, so that no zero of the start hides a mistake."""
    torch.manual_seed(seed(5))
    shape = {"max_length": 8, "dtype": "float64", **shape}
    variant = build(selection, AttentionShape(heads=HEADS, head_dim=DIM, **shape)).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.normal_()
    return variant


def heads(length: int, batch: int = 2, salt: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed(salt))
    q, k, v = (torch.randn(batch, HEADS, length, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


def average_by_loops(logits: Tensor, values: Tensor, window: int | None, valid: Tensor | None = None) -> Tensor:
    """Softmax average of each window of a float64 sequence: logits (length), values (length, d)."""
    means = torch.zeros_like(values)
    for t in range(len(logits)):
        start = 0 if window is None else max(0, t - window + 1)
        seen = [j for j in range(start, t + 1) if valid is None or valid[j]]
        if seen:
            top = max(float(logits[j]) for j in seen)
            powers = [math.exp(float(logits[j]) - top) for j in seen]
            means[t] = sum(p * values[j] for p, j in zip(powers, seen, strict=True)) / sum(powers)
    return means


WINDOWED = {"layer": 1, "layers": 3, "causal": True}
