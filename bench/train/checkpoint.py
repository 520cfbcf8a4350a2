"""Checkpoints of a training run: all that decides what comes next, read back without executing code."""

from __future__ import annotations

import os
import pickle
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.errors import StoreError

if TYPE_CHECKING:
    from .state import Training


def write_checkpoint(path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, state: Training) -> None:
    """Atomic: a kill during the write leaves the previous checkpoint."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    values["curve"] = [asdict(point) for point in state.curve]
    content = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "training": values,
        # Dropout after the resumption must draw what it would have drawn without the interruption.
        "random": torch.get_rng_state(),
        "cuda_random": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside the old checkpoint, flushed to the disk, and only then renamed: a rename is atomic, and a kill
        # at any moment leaves one whole file.
        with unfinished.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(f"cannot write the checkpoint {path}: {error}; free space, or use other --results") from None


def read_checkpoint(
    path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, device: torch.device
) -> Training:
    """The state at the last checkpoint; model, optimiser and random generators are set back to it."""
    from .state import Training, ValidationPoint

    # weights only: a pickle that may build any object runs code of whoever wrote the file
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(content["model"])
    optimiser.load_state_dict(content["optimiser"])
    # Generators live on the CPU, wherever `map_location` has put their state.
    torch.set_rng_state(content["random"].cpu())
    if content["cuda_random"] and device.type == "cuda":
        torch.cuda.set_rng_state_all([state.cpu() for state in content["cuda_random"]])
    values = content["training"]
    return Training(**values | {"curve": [ValidationPoint(**point) for point in values["curve"]]})


def read_parameters(path: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """The best parameters and buffers of a run, by name; raises StoreError where the file does not read."""
    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        best: dict[str, torch.Tensor] = content["training"]["best_state"]
    except (OSError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error}; delete it and train the cell again") from None
    return best
