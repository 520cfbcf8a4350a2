"""Training of one Cell: the loop, its checkpoints, and the choice of the best step by validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, variance

import torch
from torch import Tensor

from ...tasks.contract import Dataset, Recipe
from ..core.errors import StoreError
from ..core.hashing import axis_seed
from ..core.metrics import ACCURACY
from ..models.blocks import Batch, Model
from .batch_source import Source, batch_source
from .captured_step import CapturedStep, OrdinaryStep, adamw, prepare, set_rate, why_not
from .checkpoint import Training, ValidationPoint, read_checkpoint, set_aside, write_checkpoint
from .device import autocast
from .objectives.objective import Objective

CHECKPOINT_SECONDS = 30.0

SOLVED, RUNNING, LEAST = 0.995, 3, 4
"""A training by `until_solved` ends where so many evaluations in a row have at least that share right, and no earlier
than after a quarter of its steps: what is right at the lengths of training may still get sharper beyond them."""

STILL = 0.01
"""The least rise of the share right, from the third quarter of a training to the last, that counts as improving."""


Report = Callable[[Training], None]


class Trainer:
    """Trains `model` on `dataset` as `recipe` says. Data order depends on (task, seed), never on the variant.

    Killed and run again with the same checkpoint file it goes on where it was and, on CPU, ends with the same bits.
    `mark`: of this account, see `mark_of`; it is told where a checkpoint that is gone on from has another.
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
        mark: str | None = None,
        report: Report = lambda training: None,
        heartbeat: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda message: None,
    ):
        recipe = objective.recipe
        self.objective, self.model, self.dataset, self.recipe, self.device = objective, model, dataset, recipe, device
        self.task, self.seed = task, seed
        self.checkpoint, self.report, self.heartbeat, self.notice = checkpoint, report, heartbeat, notice
        self.ordinary = why_not(model, recipe, device)
        self.optimiser = adamw(model, recipe, device, captured=not self.ordinary)
        self.mark = mark
        # of other metrics no ceiling is known
        self.may_end = recipe.schedule == "until_solved" and objective.metric == ACCURACY.name
        self.state = Training(learning_rate=recipe.learning_rate, mark=mark or "")
        # summed on the device, so that no step waits for the host
        self.loss_total = torch.zeros((), dtype=torch.float64, device=device)
        self.step: OrdinaryStep = partial(ordinary_step, model, self.optimiser, recipe)
        self.captured: CapturedStep | None = None
        if not self.ordinary:
            self.step = self.captured = CapturedStep(self.step, model, self.optimiser, recipe, device)

    @property
    def uncaptured(self) -> str:
        """Why steps are no replays of a CUDA graph, in words; empty where they are."""
        return self.captured.reason if self.captured is not None else self.ordinary

    def run(self) -> Training:
        """All steps, from the checkpoint where there is one; leaves the parameters to be tested in the model."""
        # Named axes: the seed leaves the variant out, so that variants of one seed see the same data in the same order
        # and can be compared in pairs. It differs from that of the initialisation, so that neither moves the other.
        torch.manual_seed(axis_seed(use="dropout", task=self.task, seed=self.seed))
        # After seeding: a checkpoint sets the generators back to where they were.
        self._restore()
        prepare(self.optimiser, self.device, captured=self.captured is not None)
        state, recipe = self.state, self.recipe
        numbers = range(state.step * recipe.accumulate, recipe.steps * recipe.accumulate)
        # the batches behind an early end are never asked for
        with batch_source(self.objective, self.dataset.train, self.task, self.seed, self.device, numbers) as source:
            self._train(source)
        if recipe.averaged > 1:
            state.best_state, state.best_step = average(state.last_states), state.step
        self._save()
        # What is tested is the step that validation chose. Choosing it on the test split, as some code does, reports
        # the luck of the best of many evaluations.
        self.model.load_state_dict(state.best_state)
        return state

    def _train(self, source: Source) -> None:
        state, recipe, replayed = self.state, self.recipe, self.state.replays
        saved = started = time.perf_counter()
        while state.step < (last := state.end or recipe.steps):
            waited, begun = state.data_seconds, time.perf_counter()
            set_rate(self.optimiser, learning_rate(state.step, recipe, last))
            self.loss_total += self.step(self._taken(source))
            state.host_seconds += time.perf_counter() - begun - (state.data_seconds - waited)
            if self.captured is not None:
                state.replays = replayed + self.captured.replays
            state.loss_steps += 1
            state.step += 1
            # The last step is always evaluated, so that a run of any length has a step to choose.
            if state.step % recipe.evaluate_every == 0 or state.step == last:
                state.seconds += self._since(started)
                self._validate()
                if self.may_end and not state.end and is_solved(state.curve):
                    state.end = min(max(state.step + decay_steps(recipe), recipe.steps // LEAST), recipe.steps)
                started = time.perf_counter()
            # After validation, so that what is reported belongs to this step.
            self.report(state)
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                state.seconds += self._since(started)
                self._save()
                saved = started = time.perf_counter()

    def _since(self, started: float) -> float:
        if self.device.type == "cuda":
            # steps that are still queued belong to training, not to what comes after
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def _taken(self, source: Source) -> Iterator[Batch]:
        """The batches of the step that comes next, with the time to get them."""
        first = self.state.step * self.recipe.accumulate
        for number in range(first, first + self.recipe.accumulate):
            asked = time.perf_counter()
            batch = source(number)
            self.state.data_seconds += time.perf_counter() - asked
            yield batch

    def _validate(self) -> None:
        state = self.state
        # Seconds of training stop before this: evaluation costs every variant the same number of examples, and is no
        # part of `train_seconds`.
        found = self.objective.evaluate(self.model, self.dataset.validation, self.device, self.heartbeat)
        state.curve.append(
            ValidationPoint(
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
            # Averages are of equally spaced steps at the end (Vaswani et al. 2017, section 6.1), so validation chooses
            # none.
            state.last_states = [*state.last_states, self._parameters()][-self.recipe.averaged :]
        # the first is kept even where it is not a number: a run that diverges ends with what it had
        elif not state.best_state or found.rank > state.best:
            state.best, state.best_step = found.rank, state.step
            state.best_state = self._parameters()

    def _parameters(self) -> dict[str, Tensor]:
        # A copy: `state_dict` refers to the parameters that the next step changes.
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _save(self) -> None:
        if self.checkpoint is not None:
            # The only wait for the device in between; it happens twice a minute.
            self.state.loss_sum = float(self.loss_total)
            write_checkpoint(self.checkpoint, self.model, self.optimiser, self.state)

    def _restore(self) -> None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            self.state = read_checkpoint(
                self.checkpoint, self.model, self.optimiser, self.device, self.recipe.steps, self.recipe.learning_rate
            )
            self.loss_total.fill_(self.state.loss_sum)
            if self.mark is not None and not (self.mark and self.state.mark == self.mark):
                self.notice(
                    f"training goes on at step {self.state.step:,} from {self.checkpoint}, which this account did not "
                    "make; to start over instead, stop and delete that file"
                )
        except StoreError as error:
            # kept as it is, it would end every later run too
            self.notice(f"{error}; it was set aside as {set_aside(self.checkpoint).name}, and training starts over")


def train_step(
    model: Model, optimiser: torch.optim.Optimizer, batches: Iterable[Batch], recipe: Recipe, rate: float
) -> Tensor:
    """A step at that learning rate; on one batch the unit that the time lane measures too. Returns its loss."""
    set_rate(optimiser, rate)
    return ordinary_step(model, optimiser, recipe, batches)


def ordinary_step(model: Model, optimiser: torch.optim.Optimizer, recipe: Recipe, batches: Iterable[Batch]) -> Tensor:
    """Forward and backward on each batch, then the optimiser.

    Returns the mean loss of the batches. Each of them weighs the same, however many tokens it holds.
    """
    # Every step: evaluation and hooks leave the model in evaluation mode.
    model.train()
    # None instead of zeros: the first backward pass then writes instead of adding.
    optimiser.zero_grad(set_to_none=True)
    losses = []
    for batch in batches:
        with autocast(recipe, batch[0].device):
            loss = model.loss(batch)
        # Beside the loss and not in it: what is reported stays comparable between variants with and without such a
        # term.
        extra = model.auxiliary_loss()
        (loss if extra is None else loss + extra).backward()  # type: ignore[no-untyped-call]
        # Detached, or the graph of every batch would stay in memory.
        losses.append(loss.detach())
    if len(losses) > 1:
        # Gradients of several batches are summed by autograd; their mean is that of one batch as large.
        torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], len(losses))
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    if recipe.clip_value:
        torch.nn.utils.clip_grad_value_(model.parameters(), recipe.clip_value)
    optimiser.step()
    # Some variants change buffers between steps, such as centroids or draws of random features.
    model.after_step()
    return torch.stack(losses).mean()


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each parameter and buffer over `states`; of one that counts or marks, the last."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if last.is_floating_point() else last
        for name, last in states[-1].items()
    }


def is_solved(curve: Sequence[ValidationPoint]) -> bool:
    """True if the last evaluations of a training have nearly everything right.

    >>> is_solved([ValidationPoint(step=1, train_loss=0, validation_loss=0, validation=1.0, seconds=0)] * 3)
    True
    """
    return len(curve) >= RUNNING and all(point.validation >= SOLVED for point in curve[-RUNNING:])


def is_settled(curve: Sequence[ValidationPoint]) -> bool:
    """True if the share right rose by less than STILL from the third quarter of the evaluations to the last.

    The means of the two quarters are compared, and a rise counts where it is larger than two standard errors of their
    difference. A training that never left chance is settled: nothing tells that it would have. One of fewer than eight
    evaluations is not.
    """
    values = [point.validation for point in curve]
    quarter = len(values) // 4
    if quarter < 2:
        return False
    before, last = values[-2 * quarter : -quarter], values[-quarter:]
    error = math.sqrt((variance(before) + variance(last)) / quarter)
    return fmean(last) - fmean(before) <= max(STILL, 2 * error)


def steps_until(curve: Sequence[ValidationPoint], share: float) -> int | None:
    """The step of the first evaluation with that share right; None where there is none."""
    return next((point.step for point in curve if point.validation >= share), None)


def decay_steps(recipe: Recipe) -> int:
    """The steps in which `until_solved` brings the learning rate down: as many as it takes up."""
    return recipe.warmup


def learning_rate(step: int, recipe: Recipe, last: int | None = None) -> float:
    """Linear warm-up to `learning_rate`, then the schedule down to the last step.

    `until_solved`: constant, then linearly down over the last steps, as many as the warm-up has. `last`: where the
    training ends, if not after all steps; the rates before the way down do not depend on it.
    `one_cycle`: from a 25th up to the peak in `warmup` steps, then linearly down to a 250,000th; torch's OneCycleLR
    with its defaults and linear annealing (Smith and Topin 2018).
    """
    if recipe.schedule == "one_cycle":
        return _one_cycle(step, recipe)
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    if recipe.schedule == "constant":
        return recipe.learning_rate
    if recipe.schedule == "until_solved":
        left = (recipe.steps if last is None else last) - step
        return recipe.learning_rate * min(left / max(decay_steps(recipe), 1), 1.0)
    if recipe.schedule == "rsqrt":
        return recipe.learning_rate * math.sqrt(max(recipe.warmup, 1) / (step + 1))
    # max: a recipe may have no step after its warm-up.
    done = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    share = 1 - done if recipe.schedule == "linear" else (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return recipe.learning_rate * max(share, 0.0)


def _one_cycle(step: int, recipe: Recipe) -> float:
    # torch's scheduler is at its peak one step before the end of the warm-up, and at its end on the last step
    first, peak, last = recipe.learning_rate / 25, recipe.learning_rate, recipe.learning_rate / 25e4
    top, end = recipe.warmup - 1, recipe.steps - 1
    if step <= top:
        return first + (peak - first) * step / max(top, 1)
    return peak + (last - peak) * (step - top) / max(end - top, 1)
