"""State of a training run: what it has learned so far, and the curve of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor


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
    on a GPU is to launch them. `replays`: steps that were replays of a
    CUDA graph.
    """

    step: int = 0
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

    @property
    def data_share(self) -> float:
        """Share of the training time in which the loop waited for its batches."""
        return self.data_seconds / self.seconds if self.seconds else 0.0

    @property
    def host_seconds_a_step(self) -> float:
        return self.host_seconds / self.step if self.step else 0.0
