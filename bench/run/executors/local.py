"""Blocks on this machine, one after another, each in a child process.

One after another, since a timing Block needs the machine to itself: a neighbour that trains takes cores, caches and
memory bandwidth, and its load would stand in the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.record import Machine
from ..events import OnEvent
from ..job import Job
from .block import run_block
from .executor import Needs


class LocalExecutor:
    """The queue of this machine; `finished` works through it in the calling thread."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self._queue: dict[str, Job] = {}

    def submit(self, job: Job, needs: Needs) -> None:
        self._queue[job.block] = job

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        while self._queue:
            block, job = next(iter(self._queue.items()))
            for event in run_block(job, self.machine):
                on_event(event)
                if block not in self._queue:
                    break
            self._queue.pop(block, None)
            yield block

    def cancel(self, block: str) -> None:
        self._queue.pop(block, None)
