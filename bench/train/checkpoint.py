"""State of a training run, and its checkpoint: all that decides what comes next, read back without executing code."""

from __future__ import annotations

import hmac
import math
import pickle
import secrets
import zipfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import StoreError
from ..core.files import is_trusted, make_private, open_regular, read_regular, replacing

MOST_COPIES = 64
"""Copies of the parameters that a checkpoint may hold: model, two moments, the best and the last states."""

SLACK = 64 * 2**20
LARGEST = 256 * 2**30
"""Bytes of a checkpoint whose model is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPoint:
    """One validation. `train_loss`: mean since the last point; `validation`: in the unit of the objective's metric."""

    step: int
    train_loss: float
    validation_loss: float
    validation: float
    seconds: float

    def to_json(self, metric: str) -> dict[str, float]:
        return {
            "step": self.step,
            "train_loss": self.train_loss,
            "validation_loss": self.validation_loss,
            f"validation_{metric}": self.validation,
            "seconds": self.seconds,
        }


@dataclass(slots=True)
class Training:
    """State of a run between two steps; all that a checkpoint holds besides the model and the optimiser.

    `best`: the higher the better, see `Evaluation.rank`. `last_states`: to be averaged at the end. `data_seconds`: of
    `seconds`, those in which the loop waited for its batches; `host_seconds`: those in which the host made steps, which
    on a GPU is to launch them. `replays`: steps that were replays of a CUDA graph. `mark`: of the account that made it,
    see `mark_of`. `end`: the last step, where validation has decided it; 0 before. `learning_rate`: the highest, which
    a preset with a grid chooses for each variant.
    """

    learning_rate: float
    step: int = 0
    end: int = 0
    replays: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    host_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_steps: int = 0
    best_step: int = 0
    best: tuple[float, float] = (-math.inf, -math.inf)
    best_state: dict[str, Tensor] = field(default_factory=dict)
    last_states: list[dict[str, Tensor]] = field(default_factory=list)
    curve: list[ValidationPoint] = field(default_factory=list)
    mark: str = ""

    @property
    def data_share(self) -> float:
        """Share of the training time in which the loop waited for its batches."""
        return self.data_seconds / self.seconds if self.seconds else 0.0

    @property
    def host_seconds_a_step(self) -> float:
        return self.host_seconds / self.step if self.step else 0.0


def mark_of(path: Path, cache: Path) -> str:
    """The mark of a checkpoint that this account made, from a secret in its cache folder; empty where there is none.

    A folder of strangers may hold a checkpoint of any cell, since digests can be computed: it would go on as ours.
    """
    secret = cache / "checkpoints.key"
    try:
        if not secret.exists():
            make_private(cache)
            with replacing(secret, follow=True) as file:
                file.write(secrets.token_bytes(32))
        content = read_regular(secret, 32) if is_trusted(secret) else b""
    except OSError:
        return ""
    return hmac.new(content, path.name.encode(), "sha256").hexdigest() if content else ""


def is_own(path: Path, cache: Path) -> bool:
    """True if this account made the checkpoint; False for one that is missing or does not read."""
    try:
        mark = _content(path, torch.device("cpu"), LARGEST)["training"]["mark"]
    except Exception:
        # torch and zipfile raise many kinds for bytes that are not theirs
        return False
    return bool(mark) and bool(mark == mark_of(path, cache))


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
    try:
        with replacing(path) as file:
            torch.save(content, file)
    # torch reports a full disk as a RuntimeError, in words of its own
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its disk seems to be full"
        raise StoreError(f"cannot write the checkpoint {path}: {reason}; free space, or use other --results") from None


def read_checkpoint(
    path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, device: torch.device, steps: int, rate: float
) -> Training:
    """The state at the last checkpoint; model, optimiser and random generators are set back to it.

    Raises StoreError, and leaves all of them as they are, where the file is none of this model, of a run of more
    `steps`, or of one at another learning rate, since other trials may have chosen one since.
    """
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    settings, random = optimiser.state_dict(), torch.get_rng_state()
    try:
        content = _content(path, device, most_bytes=_bytes_of(before) * MOST_COPIES + SLACK)
        state = _training(content["training"], before)
        # before anything is loaded: a training that starts over begins with the parameters of its seed
        if state.step > steps:
            raise ValueError(f"it is of a longer run, of {state.step} steps instead of {steps}")
        if state.learning_rate != rate:
            raise ValueError(f"it is of a training at the learning rate {state.learning_rate:g} instead of {rate:g}")
        model.load_state_dict(content["model"])
        optimiser.load_state_dict(content["optimiser"])
        _check_moments(optimiser)
        # Generators live on the CPU, wherever `map_location` has put their state.
        torch.set_rng_state(content["random"].cpu())
        if content["cuda_random"] and device.type == "cuda":
            torch.cuda.set_rng_state_all([each.cpu() for each in content["cuda_random"]])
    # a file of garbage makes torch raise whatever comes
    except Exception as error:
        model.load_state_dict(before)
        optimiser.load_state_dict(settings)
        torch.set_rng_state(random)
        raise StoreError(f"cannot read the checkpoint {path}: {_first_line(error)}") from None
    return state


def read_parameters(path: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """The best parameters and buffers of a run, by name; raises StoreError where the file does not read."""
    try:
        best: dict[str, torch.Tensor] = _content(path, device, LARGEST)["training"]["best_state"]
        if not _are_tensors(best):
            raise TypeError("its parameters are no tensors by name")
    except Exception as error:
        raise StoreError(
            f"cannot read the checkpoint {path}: {_first_line(error)}; delete it and train the cell again"
        ) from None
    return best


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint, so that the run starts over and the file can still be looked at."""
    damaged = path.with_name(f"{path.name}.damaged")
    path.replace(damaged)
    return damaged


def _content(path: Path, device: torch.device, most_bytes: int) -> dict[str, Any]:
    """The dictionary of a checkpoint, which `write_checkpoint` made or anybody else."""
    with open_regular(path) as file:
        # bounded before it is loaded: members of a ZIP archive may be compressed a thousandfold
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > most_bytes:
            raise ValueError(f"it unpacks to {size:,} bytes; at most {most_bytes:,} are read")
        file.seek(0)
        # weights only: a pickle that may build any object runs code of whoever wrote the file
        content = torch.load(file, map_location=device, weights_only=True)
    if not isinstance(content, dict):
        raise TypeError(f"expected a dictionary, got {type(content).__name__}")
    return content


def _training(values: dict[str, Any], model: dict[str, torch.Tensor]) -> Training:
    """The state, once each of its parts has the type and the shape of this model."""
    state = Training(**values | {"curve": [ValidationPoint(**point) for point in values["curve"]]})
    wholes = (state.step, state.end, state.replays, state.loss_steps, state.best_step)
    reals = (state.learning_rate, state.seconds, state.data_seconds, state.host_seconds, state.loss_sum, *state.best)
    is_numbered = all(type(each) is int and each >= 0 for each in wholes) and type(state.mark) is str
    if not is_numbered or not all(type(each) is float for each in reals):
        raise TypeError("its counts are no numbers")
    for parameters in (state.best_state, *state.last_states):
        if parameters and (
            not _are_tensors(parameters)
            or {name: value.shape for name, value in parameters.items()}
            != {name: value.shape for name, value in model.items()}
        ):
            raise TypeError("its parameters are those of another model")
    return state


def _check_moments(optimiser: torch.optim.Optimizer) -> None:
    # torch takes moments of any shape, and fails at the next step
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            for name, value in optimiser.state.get(parameter, {}).items():
                if name != "step" and value.shape != parameter.shape:
                    raise TypeError("its moments are those of another model")


def _are_tensors(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(value, torch.Tensor) for value in found.values())


def _bytes_of(parameters: dict[str, torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in parameters.values())


def _first_line(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        # torch's own words end with advice to execute it
        return "it holds more than tensors and numbers, which is never loaded"
    return (str(error) or type(error).__name__).partition("\n")[0][:200]
