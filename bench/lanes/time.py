"""The time lane: the training step of all variants of one task, interleaved with the reference and its null control."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ...tasks.contract import Dataset, Problem, Recipe
from ..backbone import Encoder
from ..cell import REFERENCE, Cell
from ..clock import Timing, interleave
from ..memory import held_bytes, peak_bytes, reserved_bytes
from ..record import Measurement, Outcome, Record
from ..spec import Spec
from ..train import to_device, train_step
from .desk import Desk, builder, implementation_of

NULL = "null control"


@dataclass(slots=True, kw_only=True)
class Subject:
    """One model ready to make training steps on the block's batch."""

    model: Encoder
    work: Callable[[], object]
    optimiser: torch.optim.Optimizer


def time_cells(desk: Desk, cells: list[Cell]) -> Iterator[Record]:
    """Records of all cells, which share task, preset and seed; one of them should be the reference.

    The learning rate is 0, so that every sample meets the same, initial parameters.
    """
    sheets = {cell: desk.open(cell) for cell in cells}
    first = sheets[cells[0]]
    task, recipe, dataset = first.load()
    batch = _batch(dataset, recipe, desk.device)
    ready: dict[Cell, Subject] = {}
    for cell, sheet in sheets.items():
        sheet.recipe, sheet.data = first.recipe, first.data
        desk.send({"event": "subject", "key": cell.key})
        try:
            subject = _subject(task.problem(), recipe, cell.variant, batch, desk)
            subject.work()
            ready[cell] = subject
        except Exception as error:
            yield sheet.failure(error)
    while ready:
        turn = _Turn(desk, ready)
        try:
            timing = _interleave(turn, ready, task.problem(), recipe, batch, desk)
            break
        except Exception as error:
            # all models together need more than each alone: whose turn it was goes, the others start again
            ready.pop(turn.cell)
            yield sheets[turn.cell].failure(error)
    for cell, subject in ready.items():
        sheet = sheets[cell]
        desk.send({"event": "subject", "key": cell.key})
        try:
            sheet.implementation = implementation_of(subject.model.variants)
            sheet.measurements += _costs(subject, str(cell.variant), timing, batch, recipe)
            sheet.measurements += _memory(subject, desk.device)
            yield sheet.record(Outcome.OK)
        except Exception as error:
            yield sheet.failure(error)


@dataclass(slots=True)
class _Turn:
    """Whose turn it is, told to the parent too, which must know it if this process dies."""

    desk: Desk
    ready: dict[Cell, Subject]
    cell: Cell = field(init=False)

    def __post_init__(self) -> None:
        self.cell = next(iter(self.ready))

    def __call__(self, name: str) -> None:
        # the null control is the reference's own code
        wanted = REFERENCE if name == NULL else name
        self.cell = next(cell for cell in self.ready if str(cell.variant) == wanted)
        self.desk.send({"event": "subject", "key": self.cell.key})


def _interleave(
    turn: _Turn,
    ready: dict[Cell, Subject],
    problem: Problem,
    recipe: Recipe,
    batch: tuple[Tensor, Tensor, Tensor],
    desk: Desk,
) -> Timing:
    """Rounds over all that are ready; where the reference is not among them, times without ratios."""
    works = {str(cell.variant): subject.work for cell, subject in ready.items()}
    if REFERENCE in works:
        turn(NULL)
        works[NULL] = _subject(problem, recipe, Spec(REFERENCE), batch, desk).work
    return interleave(
        works,
        reference=REFERENCE if REFERENCE in works else next(iter(works)),
        device=desk.device,
        budget_seconds=recipe.timing_seconds,
        before=turn,
    )


def _batch(dataset: Dataset, recipe: Recipe, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    at = np.linspace(0, len(dataset.train) - 1, recipe.batch).astype(np.int64)
    return to_device(dataset.train.batch(at, recipe.length), device)


def _subject(
    problem: Problem, recipe: Recipe, variant: Spec, batch: tuple[Tensor, Tensor, Tensor], desk: Desk
) -> Subject:
    model = Encoder(problem, recipe, builder(variant, desk.device), 0, str(desk.device)).to(desk.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def work() -> object:
        return train_step(model, optimiser, batch, recipe, 0.0)

    return Subject(model=model, work=work, optimiser=optimiser)


def _costs(
    subject: Subject, name: str, timing: Timing, batch: tuple[Tensor, Tensor, Tensor], recipe: Recipe
) -> Iterator[Measurement]:
    ids, lengths, _ = batch
    mine = timing.samples[name]
    median = statistics.median(mine.seconds)
    yield Measurement.of("step_seconds", median, tuple(mine.seconds), rounds=timing.rounds, stopped=timing.stopped)
    yield Measurement.of("cpu_seconds", statistics.median(mine.cpu_seconds), tuple(mine.cpu_seconds))
    for label, other in (("reference_step_seconds", REFERENCE), ("null_step_seconds", NULL)):
        if other in timing.samples:
            seconds = timing.samples[other].seconds
            yield Measurement.of(label, statistics.median(seconds), tuple(seconds))
    if timing.foreign_cores is not None:
        yield Measurement.of("foreign_load", timing.foreign_cores)
    yield Measurement.of("examples_per_second", len(ids) / median)
    yield Measurement.of("tokens_per_second", float(lengths.sum()) / median)
    yield Measurement.of("padded_tokens_per_second", ids.numel() / median)
    variants = subject.model.variants
    density = statistics.fmean(variant.density(variant.shape) for variant in variants)
    yield Measurement.of("declared_density", density)
    # what decoding would hold is that of the causal form, whatever the direction of this task
    states = [variant.state_bytes(replace(variant.shape, causal=True)) for variant in variants]
    held = [state for state in states if state is not None]
    if len(held) == len(states):
        yield Measurement.of("state_bytes", sum(held), length=recipe.length)
    whole, extra = subject.model.parameter_counts()
    yield Measurement.of("parameters", whole)
    yield Measurement.of("extra_parameters", extra)


def _memory(subject: Subject, device: torch.device) -> Iterator[Measurement]:
    held = held_bytes(subject.model, subject.optimiser)
    yield Measurement.of("peak_bytes", held + peak_bytes(subject.work, device), held=held)
    if device.type == "cuda":
        yield Measurement.of("reserved_bytes", held + reserved_bytes(subject.work, device), held=held)
