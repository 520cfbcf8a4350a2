"""Training of one Cell: the loop, its checkpoints, and the choice of the best step by validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...tasks.contract import Dataset, Recipe
from ..core.hashing import axis_seed
from ..models.blocks import Model
from .checkpoint import read_checkpoint, write_checkpoint
from .device import autocast
from .objectives.objective import Objective
from .state import CurvePoint, Training

CHECKPOINT_SECONDS = 30.0


Report = Callable[[Training], None]


class Trainer:
    """Trains `model` on `dataset` as `recipe` says. Data order depends on (task, seed), never on the variant.

    Killed and run again with the same checkpoint file it goes on where it was and, on CPU, ends with the same bits.
    """

    def __init__(
        self,
        objective: Objective,
        model: Model,
        dataset: Dataset,
        *,
        task: str,
        seed: int,
        device: torch.device,
        checkpoint: Path | None = None,
        report: Report = lambda training: None,
        heartbeat: Callable[[], None] = lambda: None,
    ):
        recipe = objective.recipe
        self.objective, self.model, self.dataset, self.recipe, self.device = objective, model, dataset, recipe, device
        self.task, self.seed = task, seed
        self.feed = objective.feed(dataset.train, task, seed)
        self.checkpoint, self.report, self.heartbeat = checkpoint, report, heartbeat
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
        """All steps, from the checkpoint where there is one; leaves what is to be judged in the model."""
        torch.manual_seed(axis_seed(use="dropout", task=self.task, seed=self.seed))
        self._restore()
        state, recipe = self.state, self.recipe
        saved = started = time.perf_counter()
        while state.step < recipe.steps:
            rate = learning_rate(state.step, recipe)
            self.loss_total += train_step(self.model, self.optimiser, self.batches(state.step), recipe, rate)
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
        if recipe.averaged > 1:
            state.best_state, state.best_step = average(state.last_states), state.step
        self._save()
        self.model.load_state_dict(state.best_state)
        return state

    def _since(self, started: float) -> float:
        if self.device.type == "cuda":
            # steps that are still queued belong to training, not to what comes after
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def batches(self, step: int) -> Iterator[tuple[Tensor, ...]]:
        """The batches of one step, of the kind's form."""
        first = step * self.recipe.accumulate
        return (self.feed(number, self.device) for number in range(first, first + self.recipe.accumulate))

    def _validate(self) -> None:
        state = self.state
        found = self.objective.evaluate(self.model, self.dataset.validation, self.device, self.heartbeat)
        state.curve.append(
            CurvePoint(
                step=state.step,
                train_loss=float(self.loss_total) / max(state.loss_steps, 1),
                validation_loss=found.loss,
                validation=found.value,
                seconds=state.seconds,
            )
        )
        self.loss_total.zero_()
        state.loss_steps = 0
        if self.recipe.averaged > 1:
            state.last_states = [*state.last_states, self._parameters()][-self.recipe.averaged :]
        # the first is kept even where it is not a number: a run that diverges ends with what it had
        elif not state.best_state or found.rank > state.best:
            state.best, state.best_step = found.rank, state.step
            state.best_state = self._parameters()

    def _parameters(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.state.loss_sum = float(self.loss_total)
            write_checkpoint(self.checkpoint, self.model, self.optimiser, self.state)

    def _restore(self) -> None:
        if self.checkpoint is not None and self.checkpoint.is_file():
            self.state = read_checkpoint(self.checkpoint, self.model, self.optimiser, self.device)
            self.loss_total.fill_(self.state.loss_sum)


def train_step(
    model: Model, optimiser: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, ...]], recipe: Recipe, rate: float
) -> Tensor:
    """Forward and backward on each batch, then the optimiser; on one batch the unit that the time lane measures too.

    Returns the mean loss of the batches. Each of them weighs the same, however many tokens it holds.
    """
    model.train()
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad(set_to_none=True)
    losses = []
    for batch in batches:
        with autocast(recipe, batch[0].device):
            loss = model.loss(batch)
        extra = model.auxiliary_loss()
        (loss if extra is None else loss + extra).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    if len(losses) > 1:
        torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], len(losses))
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimiser.step()
    model.after_step()
    return torch.stack(losses).mean()


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each parameter and buffer over `states`; of one that counts or marks, the last."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if last.is_floating_point() else last
        for name, last in states[-1].items()
    }


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
