"""The time lane: all variants of one question in turns, interleaved with the reference and its null control."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ....tasks.contract import Dataset, Recipe, Task
from ....tasks.sweep_point import Point, TimedTask
from ...core.cell import REFERENCE, Cell
from ...core.protocol import LEAST_ROUNDS as FEWEST
from ...core.record import Outcome, Record
from ...core.spec import Spec
from ...gate.cache import build_checked_cached
from ...measure.flops import Count
from ...measure.machine import available_bytes
from ...measure.memory import at_most
from ...measure.timer import LEAST_ROUNDS, TimingRun, drift_probe, interleave
from ...train.objectives.registry import objective_for
from ..context import RecordBuilder, WorkerContext, implementation_of
from ..workloads.sweep_point import SweepWorkloads
from ..workloads.training_step import TrainStepWorkloads
from ..workloads.workload import Workload, Workloads
from .max_length import longest_lengths
from .timing_record import NULL, costs, memory, peaks_of

SPARED = 0.05
"""Share of the free memory left to others: where a variant wants more, its allocation fails and nothing dies."""


class TooSlow(Exception):
    """One sample takes longer than a whole point may."""


def time_cells(context: WorkerContext, cells: list[Cell]) -> Iterator[Record]:
    """Records of all cells, which share task, preset and seed; one of them should be the reference."""
    sheets = {cell: context.open(cell) for cell in cells}
    first = sheets[cells[0]]
    task, recipe, dataset = first.load()
    for builder in sheets.values():
        builder.recipe, builder.data = first.recipe, first.data
    if isinstance(task, TimedTask) and isinstance(recipe, Point) and recipe.memory_bytes:
        yield from longest_lengths(context, sheets, task, recipe)
        return
    room = available_bytes() if context.device.type == "cpu" else None
    with at_most((1 - SPARED) * room) if room else nullcontext():
        yield from _timed(context, sheets, _setup(task, recipe, dataset, context))


def _setup(task: Task, recipe: Recipe, dataset: Dataset, context: WorkerContext) -> Workloads:
    if isinstance(task, TimedTask) and isinstance(recipe, Point):
        build = build_checked_cached(context.place.cache, context.machine.id)
        return SweepWorkloads.of(task, recipe, dataset, context.device, build)
    return TrainStepWorkloads.of(objective_for(task.problem(), recipe), dataset, context.device)


def _timed(context: WorkerContext, sheets: dict[Cell, RecordBuilder], setup: Workloads) -> Iterator[Record]:
    ready: dict[Cell, Workload] = {}
    for cell, builder in sheets.items():
        context.send({"event": "subject", "key": cell.key})
        try:
            ready[cell] = _ready(setup, cell.variant)
        except TooSlow as slow:
            yield builder.record(Outcome.TIMEOUT, str(slow))
        except Exception as error:
            yield builder.failure(error)
    while ready:
        turn = _Turn(context, ready)
        try:
            timing = _interleave(turn, ready, setup)
            break
        except Exception as error:
            # all models together need more than each alone: whose turn it was goes, the others start again
            ready.pop(turn.cell)
            yield sheets[turn.cell].failure(error)
    peaks = peaks_of(setup, context) if ready else None
    for cell, subject in ready.items():
        builder = sheets[cell]
        context.send({"event": "subject", "key": cell.key})
        try:
            builder.implementation = implementation_of(subject.variants)
            builder.measurements += costs(setup, subject, str(cell.variant), timing, peaks)
            builder.measurements += memory(setup, subject)
            builder.measurements += subject.tell()
            yield builder.record(Outcome.OK)
        except Exception as error:
            yield builder.failure(error)


def _ready(setup: Workloads, variant: Spec) -> Workload:
    """The subject after one counted sample; raises TooSlow where a second one is beyond the limit too."""
    subject = setup.subject(variant)
    with Count() as count:
        seconds = _seconds(subject, setup.device)
    subject.flops, subject.traffic_bytes = count.flops / setup.units, count.traffic_bytes / setup.units
    limit = setup.limit_seconds
    if limit is not None and seconds > limit:
        # the first time may have built or compiled something
        seconds = min(seconds, _seconds(subject, setup.device)) if seconds < 2 * limit else seconds
        if seconds > limit:
            raise TooSlow(f"one sample takes {seconds:.0f} s, more than the {limit:.0f} s of a whole point")
    return subject


def _seconds(subject: Workload, device: torch.device) -> float:
    started = perf_counter()
    subject.once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - started


@dataclass(slots=True)
class _Turn:
    """Whose turn it is, told to the parent too, which must know it if this process dies."""

    context: WorkerContext
    ready: dict[Cell, Workload]
    cell: Cell = field(init=False)

    def __post_init__(self) -> None:
        self.cell = next(iter(self.ready))

    def __call__(self, name: str) -> None:
        # the null control is the reference's own code
        wanted = REFERENCE if name == NULL else name
        self.cell = next(cell for cell in self.ready if str(cell.variant) == wanted)
        self.context.send({"event": "subject", "key": self.cell.key})


def _interleave(turn: _Turn, ready: dict[Cell, Workload], setup: Workloads) -> TimingRun:
    """Rounds over all that are ready; where the reference is not among them, times without ratios."""
    subjects = {str(cell.variant): subject for cell, subject in ready.items()}
    if REFERENCE in subjects:
        turn(NULL)
        subjects[NULL] = setup.subject(Spec(REFERENCE))
    return interleave(
        {name: subject.work for name, subject in subjects.items()},
        reference=REFERENCE if REFERENCE in subjects else next(iter(subjects)),
        device=setup.device,
        budget_seconds=setup.recipe.timing_seconds,
        # where a round takes long, a point of a sweep makes do with as many as its interval needs
        least_rounds=LEAST_ROUNDS if setup.limit_seconds is None else FEWEST,
        before=turn,
        prepare={name: subject.prepare for name, subject in subjects.items() if subject.prepare is not None},
        drift_probe=drift_probe(setup.device),
    )
