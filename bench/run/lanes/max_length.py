"""The longest length that each variant runs at within a memory budget, tried in child processes that may die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from ....tasks.contract import DataPlace
from ....tasks.data.data import place
from ....tasks.sweep_point import Point, TimedTask
from ...core.cell import Cell
from ...core.errors import AttnbenchError, Unsupported
from ...core.record import Measurement, Outcome, Record
from ...core.registry import TASKS
from ...core.spec import Spec
from ...gate.build import build_unchecked
from ...measure.max_length import Verdict, search_max_length
from ...measure.memory import memory_limit
from ...process.child import ChannelError, Child, encode_order
from ...process.servers import end_servers
from ..context import RecordBuilder, WorkerContext, is_out_of_memory, tells_of_memory
from ..events import CellStarted, LengthTried, decode
from ..executors.run_job import GOODBYE_SECONDS, WORKER, classify_exit, oom_kills
from ..workloads.sweep_point import LEAST_LIMIT, SweepWorkloads, shape_of
from .timing_record import memory

STARTING_SECONDS = 120.0
"""The time that a child may take to import and to answer for the first time, beyond the time of a point."""

SLACK_BYTES = 2**30
"""Address space beside the tensors, for threads and the profiler; what fits is decided by the bytes allocated."""


def longest_lengths(
    context: WorkerContext, builders: dict[Cell, RecordBuilder], task: TimedTask, point: Point
) -> Iterator[Record]:
    """One Record a cell: the longest length that runs in `point.memory_bytes`, or an outcome where none does."""
    build = context.builder(point.batch, cached=True)
    for cell, builder in builders.items():
        context.send(CellStarted(cell.key))
        search = LengthSearch(context=context, cell=cell, point=point)
        try:
            build(cell.variant)(shape_of(point, context.device))
            found = search_max_length(search.attempt)
        except Exception as error:
            yield builder.failure(error)
            continue
        finally:
            search.end()
            # nothing runs beside what is timed next
            end_servers()
        if found.length == 0:
            out = Outcome.OUT_OF_MEMORY if found.stopped == "memory" else Outcome.TIMEOUT
            yield builder.record(out, f"the shortest length tried fails already by {found.stopped}")
            continue
        builder.measurements.append(
            Measurement.of("longest_length", found.length, stopped=found.stopped, mode=point.mode,
                           memory_bytes=point.memory_bytes)
        )  # fmt: skip
        yield builder.record(Outcome.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLengthOrder:
    """Try the variant and the sweep point of `cell` at the lengths that follow, within `memory_bytes`."""

    cell: Cell
    device: str
    threads: int
    memory_bytes: int


@dataclass(slots=True)
class LengthSearch:
    """Tries lengths in a child, and starts another where one died.

    In a child, since a length that does not fit may end the process instead of raising; the same child for many
    lengths, since starting one takes longer than most of them.
    """

    context: WorkerContext
    cell: Cell
    point: Point
    child: Child | None = field(init=False, default=None)

    def attempt(self, length: int) -> Verdict:
        """Try if `length` fits. A child that dies wanted more memory than there is only where an allocation failed.

        Raises Unsupported where the variant refuses the length, RuntimeError where the child died of something else.
        """
        kills = oom_kills()
        self.context.send(CellStarted(self.cell.key))
        patience = max(self.point.timing_seconds, LEAST_LIMIT)
        memory_bytes = self.point.memory_bytes or 0
        if self.child is None:
            self.child = Child(WORKER)
            self.child.send(
                encode_order(
                    MaxLengthOrder(
                        cell=self.cell,
                        device=str(self.context.device),
                        threads=torch.get_num_threads(),
                        memory_bytes=memory_bytes,
                    )
                )
            )
            patience += STARTING_SECONDS
        self.child.send(f"{length}\n".encode())
        try:
            line = self.child.receive(patience)
            event = None if line is None else decode(line)
        except TimeoutError:
            self.end()
            return "time"
        except (ChannelError, AttnbenchError) as error:
            self.end()
            raise RuntimeError(f"it wrote on its channel what is no event: {error}") from None
        if not isinstance(event, LengthTried):
            child, self.child = self.child, None
            child.end(GOODBYE_SECONDS)
            outcome, reason = classify_exit(child.exit_code, child.last_errors, oom_kills() > kills)
            if outcome is Outcome.OUT_OF_MEMORY or tells_of_memory(child.last_errors):
                return "memory"
            raise RuntimeError(f"at length {length:,}: {reason}")
        if event.crashed:
            raise RuntimeError(f"at length {length:,}: {event.error}")
        if event.error:
            raise Unsupported(f"at length {length:,}: {event.error}")
        return "memory" if event.peak_bytes is None or event.peak_bytes > memory_bytes else "fits"

    def end(self) -> None:
        """Ends the child, if there is one."""
        if self.child is not None:
            self.child.end()
            self.child = None


def tried_lengths(order: MaxLengthOrder, lengths: Iterator[bytes]) -> Iterator[LengthTried]:
    """In the child: one answer for each length that arrives."""
    here, device = place(offline=True), torch.device(order.device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, order.memory_bytes / total), device)
    for line in lengths:
        yield _tried(order, int(line), here, device)


def _tried(order: MaxLengthOrder, length: int, here: DataPlace, device: torch.device) -> LengthTried:
    # on a CPU an allocation beyond the budget is made to fail, before the system kills something for it
    limited = memory_limit(order.memory_bytes + SLACK_BYTES) if device.type == "cpu" else nullcontext()
    try:
        with limited:
            return LengthTried(_peak_bytes(order, length, here, device))
    except Exception as error:
        if is_out_of_memory(error):
            return LengthTried()
        if isinstance(error, AttnbenchError):
            return LengthTried(error=str(error))
        return LengthTried(error=f"{type(error).__name__}: {error}", crashed=True)


def _peak_bytes(order: MaxLengthOrder, length: int, here: DataPlace, device: torch.device) -> float:
    """The peak of one unit of work at `length`, with all that is held."""
    rest = {name: value for name, value in order.cell.task.parameters if name not in ("memory_bytes", "length")}
    task: TimedTask = TASKS.build(Spec.of(order.cell.task.name, **rest, length=length))
    point = task.recipe(order.cell.preset)
    assert isinstance(point, Point)
    dataset = task.load(here, point, 0, "validation")
    # the gate has passed already, in the worker that asks
    workloads = SweepWorkloads.of(task, point, dataset, device, build_unchecked)
    found = memory(workloads, workloads.workload(order.cell.variant))
    return next(m.value for m in found if m.name == "peak_bytes")
