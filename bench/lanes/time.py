"""The time lane: the training step of all variants of one task, interleaved with the reference and its null control."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...tasks.contract import Dataset, Problem, Recipe
from ..backbone import Encoder
from ..cell import REFERENCE, Cell
from ..clock import Timing, interleave
from ..memory import held_bytes, peak_bytes
from ..record import Measurement, Outcome, Record
from ..spec import Spec
from ..train import to_device, train_step
from .desk import Desk, builder

NULL = "null control"


@dataclass(slots=True, kw_only=True)
class Subject:
    """One model ready to make training steps on the block's batch."""

    model: Encoder
    work: Callable[[], object]
    optimiser: torch.optim.Optimizer


def time_cells(desk: Desk, cells: list[Cell]) -> Iterator[Record]:
    """Records of all cells, which share task, preset and seed; the reference must be one of them.

    The learning rate is 0, so that every sample meets the same, initial parameters.
    """
    sheets = {cell: desk.open(cell) for cell in cells}
    first = sheets[cells[0]]
    task, recipe, dataset = first.load()
    batch = _batch(dataset, recipe, desk.device)
    subjects: dict[str, Subject] = {}
    ready: list[Cell] = []
    for cell, sheet in sheets.items():
        sheet.recipe, sheet.data = first.recipe, first.data
        desk.send({"event": "subject", "key": cell.key})
        try:
            subjects[str(cell.variant)] = subject = _subject(task.problem(), recipe, cell.variant, batch, desk)
            subject.work()
            ready.append(cell)
        except Exception as error:
            subjects.pop(str(cell.variant), None)
            yield sheet.failure(error)
    if not any(cell.variant == Spec(REFERENCE) for cell in ready):
        return
    subjects[NULL] = _subject(task.problem(), recipe, Spec(REFERENCE), batch, desk)
    keys = {str(cell.variant): cell.key for cell in ready}
    timing = interleave(
        {name: subject.work for name, subject in subjects.items()},
        reference=REFERENCE,
        device=desk.device,
        budget_seconds=recipe.timing_seconds,
        before=lambda name: desk.send({"event": "subject", "key": keys.get(name, keys[REFERENCE])}),
    )
    for cell in ready:
        sheet = sheets[cell]
        desk.send({"event": "subject", "key": cell.key})
        try:
            sheet.measurements += _costs(subjects[str(cell.variant)], str(cell.variant), timing, batch, recipe)
            sheet.measurements += _memory(subjects[str(cell.variant)], desk.device)
            yield sheet.record(Outcome.OK)
        except Exception as error:
            yield sheet.failure(error)


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
        yield Measurement.of("reserved_bytes", torch.cuda.max_memory_reserved(device))
