"""Jobs on this machine: one at a time on each GPU, or side by side on the processor, each in a child process.

A timing job has its GPU to itself, as every job has. On the processor it has the machine to itself: a neighbour that
trains takes cores, caches and memory bandwidth, and its load would stand in the numbers.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from ...core.hashing import content_hash
from ...core.record import Machine, Outcome
from ..events import CellFinished, Event, OnEvent
from ..job import Job
from .executor import Needs
from .run_job import Waiting, run_job, wait_for

HIDDEN_NODE = content_hash(platform.node(), 8)
"""This machine without its name, which is not for publication: Records of two of one kind still tell them apart."""

LEAST_BYTES = 2**30
"""Memory that must be free before a job starts beside another, until one has shown what it takes."""


@dataclass(slots=True)
class _LocalJob:
    """A job that runs. `left`: keys of Cells without a Record; `beside`: whether another has run meanwhile."""

    job: Job
    needs: Needs
    events: Generator[Event | Waiting, None, None]
    left: set[str]
    beside: bool = False
    starved: bool = False


class LocalExecutor:
    """`devices`: one for each job that may run at once, as CUDA_VISIBLE_DEVICES names it; on a processor '' each."""

    def __init__(self, machine: Machine, devices: Sequence[str] = ("",)):
        self.machine = machine
        self.room: float = len(devices)
        self._free = list(devices)
        self._queue: deque[tuple[Job, Needs]] = deque()
        self._running: dict[str, _LocalJob] = {}
        self._largest_bytes = LEAST_BYTES

    def submit(self, job: Job, needs: Needs) -> None:
        self._queue.append((replace(job, executor="local", node=HIDDEN_NODE), needs))

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        try:
            while self._queue or self._running:
                self._start()
                waiting = []
                for block, run in list(self._running.items()):
                    waits = self._advance(run, on_event)
                    if waits is not None:
                        waiting.append(waits)
                    elif block in self._running:
                        self._release(block)
                        if not run.starved:
                            yield block
                if len(waiting) == len(self._running) > 0:
                    wait_for(waiting)
        finally:
            for block in list(self._running):
                self.cancel(block)

    def cancel(self, block: str) -> None:
        self._queue = deque(each for each in self._queue if each[0].block != block)
        if block in self._running:
            run = self._running[block]
            run.starved = False
            # its child has ended once this returns
            run.events.close()
            self._release(block)

    def _advance(self, run: _LocalJob, on_event: OnEvent) -> Waiting | None:
        """Passes on what the job has to tell now; None where it has ended."""
        for said in run.events:
            if isinstance(said, Waiting):
                return said
            if isinstance(said, CellFinished):
                if run.beside and not run.needs.gpus and said.record.outcome is Outcome.OUT_OF_MEMORY:
                    # beside another, that is no property of the Cell: it is run again, alone
                    run.starved = True
                    continue
                run.left.discard(said.record.key)
            on_event(said)
        return None

    def _start(self) -> None:
        """Starts as many as there are devices, in the order of the queue."""
        while self._queue and self._free and self._has_room(self._queue[0][1]):
            job, needs = self._queue.popleft()
            job = replace(job, gpu=self._free.pop(0))
            machine = replace(self.machine, threads=job.threads or self.machine.threads)
            self._running[job.block] = _LocalJob(job, needs, run_job(job, machine), {cell.key for cell in job.cells})
            if len(self._running) > 1:
                for each in self._running.values():
                    each.beside = True

    def _has_room(self, needs: Needs) -> bool:
        if not self._running:
            return True
        if needs.alone or any(run.needs.alone for run in self._running.values()):
            return False
        if needs.gpus:
            return True
        self._largest_bytes = max(self._largest_bytes, _largest_child_bytes())
        return bool(psutil.virtual_memory().available > self._largest_bytes)

    def _release(self, block: str) -> None:
        run = self._running.pop(block)
        self._free.append(run.job.gpu)
        if run.starved:
            cells = tuple(cell for cell in run.job.cells if cell.key in run.left)
            self._queue.appendleft((replace(run.job, cells=cells), replace(run.needs, alone=True)))


def _largest_child_bytes() -> int:
    """Resident memory of the largest process below this one."""
    largest = 0
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                largest = max(largest, child.memory_info().rss)
    return largest
