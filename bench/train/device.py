"""Batches and precision on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...tasks.contract import Recipe
from ..models.blocks import Batch


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """Mixed precision where the recipe asks for it and the device gains by it; float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16" and device.type == "cuda")


def to_device(batch: Sequence[npt.NDArray[Any]], device: torch.device) -> Batch:
    """The arrays of a batch as tensors, whole numbers as int64."""
    arrays = [np.asarray(array) for array in batch]
    arrays = [array if array.dtype == np.bool_ else array.astype(np.int64, copy=False) for array in arrays]
    return move(tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays), device)


def pinned(batch: Batch) -> Batch:
    """The batch in memory that a GPU reads by itself: only from there a copy overlaps with the step before."""
    return tuple(tensor.pin_memory() for tensor in batch)


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device, which the host does not wait for."""
    if device.type != "cuda":
        return batch
    return tuple(tensor.to(device, non_blocking=True) for tensor in pinned(batch))
