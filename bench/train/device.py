"""Batches and precision on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...tasks.contract import Recipe, Whole


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """Mixed precision where the recipe asks for it and the device gains by it; float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16" and device.type == "cuda")


def to_device(batch: tuple[Any, Whole, Whole], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    ids, lengths, labels = batch
    arrays = (ids.astype(np.int64), lengths, np.asarray(labels, dtype=np.int64))
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type == "cuda":
        # Only from pinned memory does a copy to the GPU overlap with the step before.
        tensors = [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    return tensors[0], tensors[1], tensors[2]
