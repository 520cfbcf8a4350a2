"""The time lane: all variants of one task and preset, interleaved with the reference and its null control."""

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
from ...measure.flops import FlopCounter
from ...measure.machine import available_bytes
from ...measure.memory import memory_limit
from ...measure.timer import LEAST_ROUNDS, TimingRun, drift_probe, interleave
from ...train.objectives.registry import objective_for
from ..context import RecordBuilder, WorkerContext, implementation_of
from ..events import CellStarted
from ..workloads.sweep_point import SweepWorkloads
from ..workloads.training_step import TrainStepWorkloads
from ..workloads.workload import Workload, Workloads
from .max_length import longest_lengths
from .timing_record import NULL, costs, memory, peaks_of

SPARED = 0.05
"""Share of the free memory left to others: where a variant wants more, its allocation fails and nothing is killed."""


class TooSlow(Exception):
    """One sample takes longer than a whole point may."""


def time_cells(context: WorkerContext, cells: list[Cell]) -> Iterator[Record]:
    """Records of all cells, which share task, preset and seed; one of them should be the reference."""
    builders = {cell: context.open(cell) for cell in cells}
    first = builders[cells[0]]
    task, recipe, dataset = first.load()
    # One task and preset, so one data set; it is loaded once for all.
    for builder in builders.values():
        builder.recipe, builder.data = first.recipe, first.data
    if isinstance(task, TimedTask) and isinstance(recipe, Point) and recipe.memory_bytes:
        yield from longest_lengths(context, builders, task, recipe)
        return
    # Without a limit a Linux system grants any allocation and later kills a process, perhaps another one.
    with memory_limit((1 - SPARED) * available_bytes()) if context.device.type == "cpu" else nullcontext():
        yield from _timed(context, builders, _workloads(task, recipe, dataset, context))


def _workloads(task: Task, recipe: Recipe, dataset: Dataset, context: WorkerContext) -> Workloads:
    if isinstance(task, TimedTask) and isinstance(recipe, Point):
        build = build_checked_cached(context.place.cache, context.machine.id)
        return SweepWorkloads.of(task, recipe, dataset, context.device, build)
    return TrainStepWorkloads.of(objective_for(task.problem(), recipe), dataset, context.device)


def _timed(context: WorkerContext, builders: dict[Cell, RecordBuilder], workloads: Workloads) -> Iterator[Record]:
    ready: dict[Cell, Workload] = {}
    for cell, builder in builders.items():
        context.send(CellStarted(cell.key))
        try:
            # Each alone first: a variant that fails leaves before any round is made, and the others are timed as if it
            # had not been there.
            ready[cell] = _ready(workloads, cell.variant)
        except TooSlow as slow:
            yield builder.record(Outcome.TIMEOUT, str(slow))
        except Exception as error:
            yield builder.failure(error)
    while ready:
        turn = _Turn(context, ready)
        try:
            timing = _interleave(turn, ready, workloads)
            break
        except Exception as error:
            # all models together need more than each alone: whose turn it was goes, the others start again
            ready.pop(turn.cell)
            yield builders[turn.cell].failure(error)
    peaks = peaks_of(workloads, context) if ready else None
    for cell, workload in ready.items():
        builder = builders[cell]
        context.send(CellStarted(cell.key))
        try:
            builder.implementation = implementation_of(workload.variants)
            builder.measurements += costs(workloads, workload, str(cell.variant), timing, peaks)
            builder.measurements += memory(workloads, workload)
            builder.measurements += workload.attention()
            yield builder.record(Outcome.OK)
        except Exception as error:
            yield builder.failure(error)


def _ready(workloads: Workloads, variant: Spec) -> Workload:
    """The workload after one counted sample; raises TooSlow where a second one is beyond the limit too."""
    workload = workloads.workload(variant)
    with FlopCounter() as count:
        # FLOPs are counted on a sample of its own, since counting slows it down.
        seconds = _seconds(workload, workloads.device)
    workload.flops, workload.traffic_bytes = count.flops / workloads.units, count.traffic_bytes / workloads.units
    limit = workloads.limit_seconds
    if limit is not None and seconds > limit:
        # the first time may have built or compiled something
        seconds = min(seconds, _seconds(workload, workloads.device)) if seconds < 2 * limit else seconds
        if seconds > limit:
            raise TooSlow(f"one sample takes {seconds:.0f} s, more than the {limit:.0f} s of a whole point")
    return workload


def _seconds(workload: Workload, device: torch.device) -> float:
    started = perf_counter()
    workload.once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - started


@dataclass(slots=True)
class _Turn:
    """The Cell whose turn it is; the parent is sent it too, to know it if this process dies."""

    context: WorkerContext
    ready: dict[Cell, Workload]
    cell: Cell = field(init=False)

    def __post_init__(self) -> None:
        self.cell = next(iter(self.ready))

    def __call__(self, name: str) -> None:
        # the null control is the reference's own code
        wanted = REFERENCE if name == NULL else name
        self.cell = next(cell for cell in self.ready if str(cell.variant) == wanted)
        self.context.send(CellStarted(self.cell.key))


def _interleave(turn: _Turn, ready: dict[Cell, Workload], workloads: Workloads) -> TimingRun:
    """Rounds over all that are ready; where the reference is not among them, times without ratios."""
    works = {str(cell.variant): workload for cell, workload in ready.items()}
    if REFERENCE in works:
        # The reference's own code under a second name: where its interval excludes 1, the differences of this Block are
        # not to be believed.
        turn(NULL)
        works[NULL] = workloads.workload(Spec(REFERENCE))
    return interleave(
        {name: workload.work for name, workload in works.items()},
        reference=REFERENCE if REFERENCE in works else next(iter(works)),
        device=workloads.device,
        budget_seconds=workloads.recipe.timing_seconds,
        resolution=workloads.recipe.resolution,
        # where a round takes long, a point of a sweep makes do with as many as its interval needs
        least_rounds=LEAST_ROUNDS if workloads.limit_seconds is None else FEWEST,
        before=turn,
        prepare={name: workload.prepare for name, workload in works.items() if workload.prepare is not None},
        drift_probe=drift_probe(workloads.device),
    )
