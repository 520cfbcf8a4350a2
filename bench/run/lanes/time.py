"""The time lane: all variants of one task and preset, interleaved with the reference and its null control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ....tasks.contract import Dataset, Recipe, Task
from ....tasks.sweep_point import Point, TimedTask
from ...core.cell import LEAST_ROUNDS as FEWEST
from ...core.cell import REFERENCE, Cell
from ...core.record import Outcome, Record
from ...core.registry import VARIANTS
from ...core.spec import Spec
from ...gate.build import Incorrect
from ...measure.calibration import calibration
from ...measure.flops import FlopCounter
from ...measure.machine import available_bytes
from ...measure.memory import mapped_alone, memory_limit
from ...measure.timer import LEAST_ROUNDS, TimingRun, drift_probe, interleave, stopwatch
from ...train.objectives.registry import objective_for
from ..context import RecordBuilder, WorkerContext, implementation_of, is_lost, is_out_of_memory
from ..events import CellStarted, Restarted, RoundsEnded, SampleBegun, SampleEnded
from ..gate_first import examine_apart
from ..global_state import StateWatch
from ..spot_check import CONFIRMED, SpotCheck
from ..workloads.sweep_point import SweepWorkloads
from ..workloads.training_step import TrainStepWorkloads
from ..workloads.workload import Workload, Workloads
from .max_length import longest_lengths
from .timing_record import NULL, costs, energy, memory, peaks_of

SPARED = 0.05
"""Share of the free memory left to others: where a variant wants more, its allocation fails and nothing is killed."""


RECHECKED = 0.05
"""Share of the later turns of foreign code in which the rows that are timed are tested once more."""


class ChangedProcess(Exception):
    """A variant changed what the others share in this process; they need another."""


class LostDevice(Exception):
    """An error left the GPU unusable for this process: who comes next is innocent and needs another one."""


class TooSlow(Exception):
    """One sample takes longer than a whole point may."""


def time_cells(context: WorkerContext, cells: list[Cell]) -> Iterator[Record]:
    """Records of all cells, which share task, preset and seed; one of them should be the reference."""
    builders = {cell: RecordBuilder(context, cell) for cell in cells}
    first = builders[cells[0]]
    watch = StateWatch()
    task, recipe, dataset = first.load()
    # One task and preset, so one data set; it is loaded once for all.
    for builder in builders.values():
        builder.recipe, builder.data = first.recipe, first.data
    if changes := watch.changes():
        for builder in builders.values():
            yield builder.failure(Incorrect(f"the task: {changes}"))
        return
    foreign = [cell for cell in cells if not VARIANTS.is_own(cell.variant.name)]
    # where no foreign code is, another process has changed speeds, which is undone before the rounds
    watch = StateWatch(speeds=bool(foreign))
    if foreign:
        examine_apart(context, foreign, task, recipe)
    if isinstance(task, TimedTask) and isinstance(recipe, Point) and recipe.memory_bytes:
        yield from longest_lengths(context, builders, task, recipe)
        return
    # Without a limit a Linux system grants any allocation and later kills a process, perhaps another one.
    with memory_limit((1 - SPARED) * available_bytes()) if context.device.type == "cpu" else nullcontext():
        try:
            yield from _timed(context, builders, _workloads(task, recipe, dataset, context), watch)
        except (ChangedProcess, LostDevice):
            context.send(Restarted())


def _workloads(task: Task, recipe: Recipe, dataset: Dataset, context: WorkerContext) -> Workloads:
    if isinstance(task, TimedTask) and isinstance(recipe, Point):
        build = context.builder(recipe.batch, cached=True)
        return SweepWorkloads.of(task, recipe, dataset, context.device, build)
    build = context.builder(recipe.batch)
    return TrainStepWorkloads.of(objective_for(task.problem(), recipe), dataset, context.device, build)


def _timed(
    context: WorkerContext, builders: dict[Cell, RecordBuilder], workloads: Workloads, watch: StateWatch
) -> Iterator[Record]:
    """Raises ChangedProcess or LostDevice after the Record of a Cell that changed, or broke, what the others share."""
    ready: dict[Cell, Workload] = {}
    gone: set[Cell] = set()
    for cell, builder in builders.items():
        context.send(CellStarted(cell.key))
        workloads.progress = builder.filling
        failure = None
        # the next one draws the same random numbers, whatever this one draws
        with torch.random.fork_rng():
            try:
                # Each alone first: a variant that fails leaves before any round is made, and the others are timed as if
                # it had not been there.
                ready[cell] = _ready(workloads, cell.variant)
            except TooSlow as slow:
                failure = builder.record(Outcome.TIMEOUT, str(slow))
            except Exception as error:
                failure = builder.failure(error)
        if failure is not None:
            gone.add(cell)
        yield from _shared(watch, builders, cell, failure, gone)
        _require_device(context)
    StateWatch.undo_from_outside()
    while ready:
        turn = _Turn(context, ready)
        try:
            timing = _interleave(turn, ready, workloads)
            turn.end()
            break
        except ChangedProcess as changed:
            for cell in turn.blamed():
                yield builders[cell].failure(Incorrect(str(changed)))
            raise
        except Exception as error:
            if turn.cell not in (guilty := turn.blamed()) and not is_out_of_memory(error):
                # it ran alone before
                for cell in guilty:
                    yield builders[cell].failure(Incorrect(f"beside it {turn.cell.variant} ends with {error!r:.200}"))
                raise ChangedProcess from error
            # all models together need more than each alone: whose turn it was goes, the others start again
            ready.pop(turn.cell)
            yield builders[turn.cell].failure(error)
            _require_device(context)
    peaks = peaks_of(workloads, context) if ready else None
    # Once for all of the block: a card that is slow, or that somebody else uses, is told by kernels that others timed.
    if ready and workloads.bare and workloads.mode != "decode" and context.device.type == "cuda":
        first = builders[min(ready, key=lambda cell: str(cell.variant) != REFERENCE)]
        try:
            first.measurements += list(calibration(context.device))
        except RuntimeError as error:
            # no room beside what is timed, say: the times are good, and the board says that nothing vouches for them
            first.absent["kernel_flops_per_second"] = " ".join(str(error).split())[:200]
        _require_device(context)
    # foreign code first: where its memory is not what it says, the others are timed again with their reference
    for cell, workload in sorted(ready.items(), key=lambda item: VARIANTS.is_own(item[0].variant.name)):
        builder = builders[cell]
        context.send(CellStarted(cell.key))
        try:
            builder.implementation = workload.implementation
            builder.measurements += costs(workloads, workload, str(cell.variant), timing, peaks)
            if workload.uncounted:
                builder.absent["flops"] = f"it calls {workload.uncounted:.150}, whose products nobody counts"
            spent = energy(workloads, workload, str(cell.variant), timing)
            if isinstance(spent, str):
                builder.absent["energy_joules"] = spent
            else:
                builder.measurements.append(spent)
            builder.measurements += memory(workloads, workload)
            turn.show_memory(cell)
            with workload.eager:
                builder.measurements += workload.attention()
            found = builder.record(Outcome.OK)
        except Exception as error:
            found = builder.failure(error)
        yield found
        _require_device(context)


def _require_device(context: WorkerContext) -> None:
    """Raises LostDevice where no more can be done on the device, after the Record of the one Cell that is to blame."""
    if is_lost(context.device):
        raise LostDevice


def _shared(
    watch: StateWatch, builders: dict[Cell, RecordBuilder], cell: Cell, failure: Record | None, gone: set[Cell]
) -> Iterator[Record]:
    """The Record of a Cell that failed, or that changed its process; raises ChangedProcess after that of the latter.

    Beside foreign code our own changes nothing: then it was the other, of which a process may have run before. `gone`:
    those that have failed.
    """
    changes = watch.changes()
    if failure is not None:
        yield failure
    if changes:
        for each in _suspects(cell, builders):
            if each not in gone:
                yield builders[each].failure(Incorrect(changes))
        raise ChangedProcess(changes)


def _suspects(cell: Cell, cells: Iterable[Cell]) -> list[Cell]:
    """The Cell whose turn it is, if its code may have changed the process; else all whose code may."""
    foreign = [each for each in cells if not VARIANTS.is_own(each.variant.name)]
    return [cell] if cell in foreign or not foreign else foreign


def _ready(workloads: Workloads, variant: Spec) -> Workload:
    """The workload after one counted sample; raises TooSlow where a second one is beyond the limit too."""
    workload = workloads.workload(variant)
    with workload.eager, FlopCounter() as count:
        # FLOPs are counted on a sample of its own, since counting slows it down.
        seconds = _seconds(workload, workloads.device)
    if not VARIANTS.is_own(variant.name):
        workload.uncounted = ", ".join(sorted(count.unknown))
    workload.counted_as = implementation_of(workload.variants)
    workload.flops, workload.traffic_bytes = count.flops / workloads.units, count.traffic_bytes / workloads.units
    limit = workloads.limit_seconds
    if limit is not None and seconds > limit:
        # the first time may have built or compiled something
        seconds = min(seconds, _seconds(workload, workloads.device)) if seconds < 2 * limit else seconds
        if seconds > limit:
            raise TooSlow(f"one sample takes {seconds:.0f} s, more than the {limit:.0f} s of a whole point")
    if workload.graph_on is not None:
        # captured only now, since a replay shows no operator to count; where it cannot be, this variant leaves
        workload.timed()
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
    watch: StateWatch | None = field(init=False, default=None)
    has_foreign: bool = field(init=False)
    checked: dict[Cell, tuple[int, SpotCheck]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.cell = next(iter(self.ready))
        # looking takes milliseconds, outside of what is timed; attnbench's own variants have tests for it
        self.has_foreign = any(not VARIANTS.is_own(cell.variant.name) for cell in self.ready)

    def __call__(self, name: str) -> None:
        self.look()
        # the null control is the reference's own code
        wanted = REFERENCE if name == NULL else name
        self.cell = next(cell for cell in self.ready if str(cell.variant) == wanted)
        self.context.send(CellStarted(self.cell.key))
        if name != NULL:
            self.check(self.ready[self.cell])

    def check(self, workload: Workload) -> None:
        """Untimed, and not in every turn: raises Incorrect where the rows that are timed are wrong."""
        share = 0.0 if self.context.job.even_if_wrong else 1.0
        done, spot = self.checked.setdefault(
            self.cell, (0, SpotCheck(self.cell.variant, self.context.device, share, steady=True))
        )
        if not spot.is_on or workload.compilation is not None or (done >= CONFIRMED and spot.draw.random() > RECHECKED):
            return
        self.checked[self.cell] = done + 1, spot
        if workload.prepare is not None:
            workload.prepare()
        # by the way of a sample
        clock = stopwatch(self.context.device)
        with spot.watching(workload.variants):
            clock.measure(workload.work, 1)

        def seconds() -> tuple[float, float]:
            if workload.prepare is not None:
                workload.prepare()
            wall, processor, _ = clock.measure(workload.work, 1)
            return wall, processor

        if not spot.found and share:
            spot.found = spot.kept_outputs(workload.contents, seconds)
            spot.found = spot.found or spot.honest_if_watched(workload.variants, seconds)
            spot.found = spot.found or spot.fast_before_training(workload.variants, seconds)
        if spot.found:
            raise Incorrect(spot.found)

    def blamed(self) -> list[Cell]:
        """Whose turn it is, if its code may have changed the process; else all whose code may: never the reference."""
        return _suspects(self.cell, self.ready)

    def look(self) -> None:
        """Raises ChangedProcess where foreign code has changed what all share since the last look."""
        if self.has_foreign and self.watch is None:
            self.watch = StateWatch(quick=True)
        elif self.watch is not None and (changes := self.watch.changes()):
            raise ChangedProcess(changes)

    def begins(self, name: str) -> None:
        """Tells the parent, which takes the time of samples too where foreign code is among them."""
        if self.has_foreign and name != NULL:
            self.context.send(SampleBegun(self.cell.key))

    def ended(self, name: str, seconds: float, cpu_seconds: float) -> None:
        if self.has_foreign and name != NULL:
            self.context.send(SampleEnded(self.cell.key, seconds, cpu_seconds))

    def show_memory(self, cell: Cell) -> None:
        """Three more samples of foreign code, of whose memory the parent asks the kernel."""
        if VARIANTS.is_own(cell.variant.name) or self.context.device.type != "cpu":
            return
        workload = self.ready[cell]
        with mapped_alone():
            for _ in range(3):
                if workload.prepare is not None:
                    workload.prepare()
                self.context.send(SampleBegun(cell.key, waits=True))
                workload.work()
                self.context.send(SampleEnded(cell.key, waits=True))

    def end(self) -> None:
        """After the rounds."""
        self.look()
        if self.has_foreign:
            self.context.send(RoundsEnded())


def _interleave(turn: _Turn, ready: dict[Cell, Workload], workloads: Workloads) -> TimingRun:
    """Rounds over all that are ready; where the reference is not among them, times without ratios."""
    works = {str(cell.variant): workload for cell, workload in ready.items()}
    if REFERENCE in works:
        # The reference's own code under a second name: where its interval excludes 1, the differences of this job are
        # not to be believed.
        turn(NULL)
        works[NULL] = workloads.null_control(Spec(REFERENCE), works[REFERENCE])
    with workloads.steady():
        return interleave(
            {name: workload.timed for name, workload in works.items()},
            reference=REFERENCE if REFERENCE in works else next(iter(works)),
            device=workloads.device,
            budget_seconds=workloads.recipe.timing_seconds,
            resolution=workloads.recipe.resolution,
            # where a round takes long, a point of a sweep makes do with as many as its interval needs
            least_rounds=LEAST_ROUNDS if workloads.limit_seconds is None else FEWEST,
            before=turn,
            prepare={name: workload.prepare for name, workload in works.items() if workload.prepare is not None},
            drift_probe=drift_probe(workloads.device),
            begins=turn.begins,
            ended=turn.ended,
        )
