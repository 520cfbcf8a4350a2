"""Blocks on this machine: one at a time on each GPU, or side by side on the processor, each in a child process.

A timing Block has its GPU to itself, as every Block has. On the processor it has the machine to itself: a neighbour
that trains takes cores, caches and memory bandwidth, and its load would stand in the numbers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import psutil

from ...core.record import Machine, Outcome
from ..events import CellFinished, Event, OnEvent
from ..job import Job
from ..job_files import JobFiles, submission_of
from .block import Cancellation
from .executor import Needs
from .node import hidden_node, run_here

LEAST_BYTES = 2**30
"""Memory that must be free before a Block starts beside another, until one has shown what it takes."""


@dataclass(slots=True)
class _Run:
    """A Block that a thread runs. `beside`: whether another has run meanwhile; `left`: Cells without a Record.

    `stored`: set once whoever called has stored the Records of the ended Block.
    """

    job: Job
    needs: Needs
    device: str
    cancellation: Cancellation = field(default_factory=Cancellation)
    thread: threading.Thread | None = None
    beside: bool = False
    starved: bool = False
    left: set[str] = field(default_factory=set)
    stored: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _End:
    """The thread of a Block has ended, with an error or without."""

    error: BaseException | None


class LocalExecutor:
    """`devices`: one for each Block that may run at once, as CUDA_VISIBLE_DEVICES names it; on a processor '' each."""

    def __init__(self, machine: Machine, files: JobFiles, devices: Sequence[str] = ("",)):
        self.machine, self.files = machine, files
        self._free = list(devices)
        self._queue: deque[tuple[Job, Needs]] = deque()
        self._running: dict[str, _Run] = {}
        self._said: queue.SimpleQueue[tuple[str, Event | _End]] = queue.SimpleQueue()
        self._largest_bytes = LEAST_BYTES

    def submit(self, job: Job, needs: Needs) -> None:
        job = replace(job, executor="local", node=hidden_node())
        known = self.files.submission(job.block)
        if known is None or known.ended or not self.files.is_running(job.block):
            self.files.submit(submission_of(job, needs.seconds))
        self._queue.append((job, needs))

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        try:
            while self._queue or self._running:
                self._start()
                block, said = self._said.get()
                run = self._running.get(block)
                if isinstance(said, _End):
                    if run is None:
                        # it was cancelled, and its thread has ended since
                        continue
                    self._release(block)
                    if said.error is not None:
                        raise said.error
                    try:
                        if not run.starved:
                            yield block
                    finally:
                        run.stored.set()
                elif run is not None and not self._starved(run, said):
                    on_event(said)
        finally:
            for block in list(self._running):
                self.cancel(block)

    def cancel(self, block: str) -> None:
        self._queue = deque(each for each in self._queue if each[0].block != block)
        run = self._running.get(block)
        if run is not None:
            run.cancellation.wish()
            run.stored.set()
            # its child has ended once this returns
            if run.thread is not None:
                run.thread.join()
            self._release(block)

    def _start(self) -> None:
        """Starts as many as there are devices, in the order of the queue."""
        while self._queue and self._free and self._has_room(self._queue[0][1]):
            job, needs = self._queue.popleft()
            run = _Run(replace(job, gpu=self._free[0]), needs, self._free.pop(0), left={c.key for c in job.cells})
            self._running[job.block] = run
            if len(self._running) > 1:
                for each in self._running.values():
                    each.beside = True
            run.thread = threading.Thread(target=self._run, args=(run,), daemon=True)
            run.thread.start()

    def _has_room(self, needs: Needs) -> bool:
        if not self._running:
            return True
        if needs.alone or any(run.needs.alone for run in self._running.values()):
            return False
        if needs.gpus:
            return True
        self._largest_bytes = max(self._largest_bytes, _largest_child_bytes())
        return bool(psutil.virtual_memory().available > self._largest_bytes)

    def _run(self, run: _Run) -> None:
        """In a thread of its own."""
        block = run.job.block
        error: BaseException | None = None

        def told() -> None:
            # another command that waits for this Block may begin only after its Records are stored
            self._said.put((block, _End(None)))
            run.stored.wait()

        try:
            machine = replace(self.machine, threads=run.job.threads or self.machine.threads)
            for event in run_here(
                run.job, machine, self.files, cancellation=run.cancellation, keeps_records=False, before_release=told
            ):
                self._said.put((block, event))
        except BaseException as problem:
            error = problem
        if not run.stored.is_set():
            self._said.put((block, _End(error)))

    def _starved(self, run: _Run, event: Event) -> bool:
        """Whether a Cell ran out of memory beside another, which is no property of it: it is run again, alone."""
        if not isinstance(event, CellFinished):
            return False
        if not (run.beside and not run.needs.gpus and event.record.outcome is Outcome.OUT_OF_MEMORY):
            run.left.discard(event.record.key)
            return False
        run.starved = True
        return True

    def _release(self, block: str) -> None:
        run = self._running.pop(block)
        self._free.append(run.device)
        if run.starved and not run.cancellation.is_wished:
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
