"""Training of one Cell: the loop, its checkpoints, and the choice of the best step by validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..tasks.contract import Dataset, Recipe, Subset, Whole
from .backbone import Encoder
from .cell import axis_seed
from .checkpoint import read_checkpoint, write_checkpoint

CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What was known at one step: mean training loss since the last point, and validation."""

    step: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Loss (nats per example), predicted classes and whether they are right, in the order of the subset."""

    loss: float
    predicted: Whole
    correct: Whole

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())


@dataclass(slots=True)
class Training:
    """State of a run between two steps; all that a checkpoint holds besides the model and the optimiser."""

    step: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_steps: int = 0
    best_step: int = 0
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    best_state: dict[str, Tensor] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)


Report = Callable[[Training], None]


class Trainer:
    """Trains `model` on `dataset` as `recipe` says. Data order depends on (task, seed), never on the variant.

    Killed and run again with the same checkpoint file it goes on where it was and, on CPU, ends with the same bits.
    """

    def __init__(
        self,
        model: Encoder,
        dataset: Dataset,
        recipe: Recipe,
        *,
        task: str,
        seed: int,
        device: torch.device,
        checkpoint: Path | None = None,
        report: Report = lambda training: None,
        beat: Callable[[], None] = lambda: None,
    ):
        self.model, self.dataset, self.recipe, self.device = model, dataset, recipe, device
        self.task, self.seed = task, seed
        self.checkpoint, self.report, self.beat = checkpoint, report, beat
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.epsilon,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self.state = Training()
        # summed on the device, so that no step waits for the host
        self.loss_total = torch.zeros((), dtype=torch.float64, device=device)

    def run(self) -> Training:
        """All steps, from the checkpoint where there is one; leaves the best parameters in the model."""
        torch.manual_seed(axis_seed(use="dropout", task=self.task, seed=self.seed))
        self._restore()
        state, recipe = self.state, self.recipe
        saved = started = time.perf_counter()
        while state.step < recipe.steps:
            batch = self.batch(state.step)
            rate = learning_rate(state.step, recipe)
            self.loss_total += train_step(self.model, self.optimiser, batch, recipe, rate)
            state.loss_steps += 1
            state.step += 1
            if state.step % recipe.evaluate_every == 0 or state.step == recipe.steps:
                state.seconds += self._since(started)
                self._validate()
                started = time.perf_counter()
            self.report(state)
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                state.seconds += self._since(started)
                self._save()
                saved = started = time.perf_counter()
        self._save()
        self.model.load_state_dict(state.best_state)
        return state

    def _since(self, started: float) -> float:
        if self.device.type == "cuda":
            # steps that are still queued belong to training, not to what comes after
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids (batch, towers, length), lengths (batch, towers), labels (batch,) of one step."""
        return to_device(self.dataset.train.batch(self._order(step), self.recipe.length), self.device)

    def _order(self, step: int) -> Whole:
        count, batch = len(self.dataset.train), self.recipe.batch
        places = np.arange(step * batch, (step + 1) * batch)
        order = np.empty(batch, dtype=np.int64)
        for epoch in np.unique(places // count):
            seed = axis_seed(use="order", task=self.task, seed=self.seed, epoch=int(epoch))
            inside = places // count == epoch
            order[inside] = _permutation(seed, count)[places[inside] % count]
        return order

    def _validate(self) -> None:
        state = self.state
        found = evaluate(self.model, self.dataset.validation, self.recipe, self.device, self.beat)
        state.curve.append(
            CurvePoint(
                step=state.step,
                train_loss=float(self.loss_total) / max(state.loss_steps, 1),
                validation_loss=found.loss,
                validation_accuracy=found.accuracy,
                seconds=state.seconds,
            )
        )
        self.loss_total.zero_()
        state.loss_steps = 0
        if (found.accuracy, -found.loss) > (state.best_accuracy, -state.best_loss):
            state.best_accuracy, state.best_loss, state.best_step = found.accuracy, found.loss, state.step
            state.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.state.loss_sum = float(self.loss_total)
            write_checkpoint(self.checkpoint, self.model, self.optimiser, self.state)

    def _restore(self) -> None:
        if self.checkpoint is not None and self.checkpoint.is_file():
            self.state = read_checkpoint(self.checkpoint, self.model, self.optimiser, self.device)
            self.loss_total.fill_(self.state.loss_sum)


@lru_cache(maxsize=2)
def _permutation(seed: int, count: int) -> Whole:
    return np.random.default_rng(seed).permutation(count)


def train_step(
    model: Encoder, optimiser: torch.optim.Optimizer, batch: tuple[Tensor, ...], recipe: Recipe, rate: float
) -> Tensor:
    """Forward, backward and optimiser on one batch; the unit that the time lane measures too."""
    ids, lengths, labels = batch
    model.train()
    for group in optimiser.param_groups:
        group["lr"] = rate
    with autocast(recipe, ids.device):
        logits = model(ids, lengths)
    loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
    extra = model.auxiliary_loss()
    optimiser.zero_grad(set_to_none=True)
    (loss if extra is None else loss + extra).backward()  # type: ignore[no-untyped-call]
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimiser.step()
    model.after_step()
    return loss.detach()


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up to `learning_rate`, then the schedule down to the last step."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    if recipe.schedule == "constant":
        return recipe.learning_rate
    if recipe.schedule == "rsqrt":
        return recipe.learning_rate * math.sqrt(max(recipe.warmup, 1) / (step + 1))
    done = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    share = 1 - done if recipe.schedule == "linear" else (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return recipe.learning_rate * max(share, 0.0)


def evaluate(
    model: Encoder, subset: Subset, recipe: Recipe, device: torch.device, beat: Callable[[], None] = lambda: None
) -> Evaluation:
    """Every example of the subset, none dropped; `beat` is called after each batch, as a sign of life."""
    model.eval()
    losses, predicted = 0.0, np.empty(len(subset), dtype=np.int64)
    with torch.inference_mode(), autocast(recipe, device):
        for first in range(0, len(subset), recipe.evaluate_batch):
            at = np.arange(first, min(first + recipe.evaluate_batch, len(subset)))
            ids, lengths, labels = to_device(subset.batch(at, recipe.length), device)
            logits = model(ids, lengths).float()
            losses += float(F.cross_entropy(logits, labels, reduction="sum"))
            predicted[at] = logits.argmax(-1).cpu().numpy()
            beat()
    correct = (predicted == subset.labels).astype(np.int64)
    return Evaluation(loss=losses / len(subset), predicted=predicted, correct=correct)


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """Mixed precision where the recipe asks for it and the device gains by it; float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16" and device.type == "cuda")


def to_device(batch: tuple[Any, Whole, Whole], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    ids, lengths, labels = batch
    arrays = (ids.astype(np.int64), lengths, np.asarray(labels, dtype=np.int64))
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type == "cuda":
        tensors = [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    return tensors[0], tensors[1], tensors[2]
