"""Distances between tensors, as the gate reports them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gap(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected entry; infinite where something is not finite.

    Raises ValueError where the shapes differ.
    """
    if found.shape != expected.shape:
        raise ValueError(f"expected shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    if not (found.isfinite().all() and expected.isfinite().all()):
        return math.inf
    # Relative to the largest entry of all and not entry by entry: near a zero any rounding is large.
    difference, scale = (found - expected).abs().max().item(), expected.abs().max().item()
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)


def gap_beyond(found: Tensor, expected: Tensor, room: Tensor) -> float:
    """Largest difference less `room`, (..., 1), of its row, relative to the largest expected entry; both finite."""
    found, expected = found.detach().double(), expected.detach().double()
    return float(((found - expected).abs() - room).max() / expected.abs().max())


def own_error(found: Tensor, expected: Tensor) -> float:
    """The difference that nine of ten rows stay below, relative to the largest expected entry.

    Not the largest: where rounding flips a choice of keys, a few rows differ wholly, which does not measure rounding.
    """
    found, expected = found.detach().double(), expected.detach().double()
    scale = expected.abs().max().item()
    if not math.isfinite(scale) or scale == 0:
        return 0.0
    rows = (found - expected).abs().amax(-1).flatten() / scale
    error = rows.quantile(0.9).item()
    return error if math.isfinite(error) else 0.0


def row_error(found: Tensor, expected: Tensor) -> float:
    """The error that nine of ten rows stay below, relative to the size of the row plus a tenth of the usual size."""
    found, expected = found.detach().double(), expected.detach().double()
    if not found.isfinite().all():
        return math.inf
    sizes = expected.norm(dim=-1)
    typical = sizes.square().mean().sqrt()
    if typical == 0:
        return 0.0 if torch.equal(found, expected) else math.inf
    # A tenth of the usual size is added, so that rows that are nearly zero do not count as wholly wrong.
    errors = (found - expected).norm(dim=-1) / (sizes + typical / 10)
    return float(errors.flatten().quantile(0.9))


def beyond(found: Tensor, expected: Tensor, allowed: float) -> Tensor:
    """Which rows, (...), differ by more than `allowed`, relative to the row plus a tenth of the usual size.

    Rows that are not finite do.
    """
    found, expected = found.detach().double(), expected.detach().double()
    sizes = expected.norm(dim=-1)
    typical = sizes.square().mean().sqrt()
    differences = (found - expected).norm(dim=-1)
    # `not <=` and not `>`, so that a row that is no number counts
    agree: Tensor = differences <= allowed * (sizes + typical / 10) + 1e-30
    return ~agree
