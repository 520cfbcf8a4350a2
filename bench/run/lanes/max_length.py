"""The longest feasible length of each variant within a memory budget, tried in child processes that may die."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from ....tasks.sweep_point import Point, TimedTask
from ...core.cell import Cell
from ...core.errors import Unsupported
from ...core.record import Measurement, Outcome, Record
from ...gate.cache import build_checked_cached
from ...measure.max_length import Longest, Verdict, longest
from ..context import RecordBuilder, WorkerContext
from ..workloads.sweep_point import LEAST_LIMIT, shape_of

STARTING_SECONDS = 120.0
"""What a child may take to import and to answer for the first time, beyond the time of a point."""


def longest_lengths(
    context: WorkerContext, sheets: dict[Cell, RecordBuilder], task: TimedTask, point: Point
) -> Iterator[Record]:
    """One Record a cell: the longest length that runs in `point.memory_bytes`, or an outcome where none does."""
    build = build_checked_cached(context.place.cache, context.machine.id)
    for cell, builder in sheets.items():
        context.send({"event": "subject", "key": cell.key})
        try:
            build(cell.variant, context.device)(shape_of(point, context.device))
            found = _search(context, cell, point)
        except Exception as error:
            yield builder.failure(error)
            continue
        if found.length == 0:
            out = Outcome.OUT_OF_MEMORY if found.stopped == "memory" else Outcome.TIMEOUT
            yield builder.record(out, f"the shortest length tried fails already by {found.stopped}")
            continue
        builder.measurements.append(
            Measurement.of("longest_length", found.length, stopped=found.stopped, mode=point.mode,
                           memory_bytes=point.memory_bytes)
        )  # fmt: skip
        yield builder.record(Outcome.OK)


def _search(context: WorkerContext, cell: Cell, point: Point) -> Longest:
    prober = Prober(context=context, cell=cell, point=point)
    try:
        return longest(prober.attempt)
    finally:
        prober.end()


@dataclass(slots=True)
class Prober:
    """Keeps a child that tries lengths, and starts another where it died."""

    context: WorkerContext
    cell: Cell
    point: Point
    child: subprocess.Popen[str] | None = field(init=False, default=None)

    def attempt(self, length: int) -> Verdict:
        """Whether `length` fits; a child that dies has wanted more memory than there is. Raises Unsupported."""
        self.context.send({"event": "subject", "key": self.cell.key})
        patience = max(self.point.timing_seconds, LEAST_LIMIT)
        if self.child is None:
            self.child = self._start()
            patience += STARTING_SECONDS
        child = self.child
        assert child.stdin and child.stdout
        with suppress(BrokenPipeError):
            child.stdin.write(f"{length}\n")
            child.stdin.flush()
        if not select.select([child.stdout], [], [], patience)[0]:
            self.end()
            return "time"
        line = child.stdout.readline()
        if not line.endswith("\n"):
            self.end()
            return "memory"
        answer = json.loads(line)
        if "error" in answer:
            raise Unsupported(f"at length {length:,}: {answer['error']}")
        return "fits" if answer.get("peak", float("inf")) <= (self.point.memory_bytes or 0) else "memory"

    def _start(self) -> subprocess.Popen[str]:
        errand = {
            "variant": str(self.cell.variant), "task": str(self.cell.task), "preset": str(self.cell.preset),
            "device": str(self.context.device), "threads": torch.get_num_threads(),
            "memory_bytes": self.point.memory_bytes,
        }  # fmt: skip
        child = subprocess.Popen(
            (sys.executable, "-P", "-m", "attnbench.bench.run.max_length_worker"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip
        assert child.stdin
        child.stdin.write(json.dumps(errand) + "\n")
        return child

    def end(self) -> None:
        """Ends the child, if there is one."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            for stream in (self.child.stdin, self.child.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self.child = None
