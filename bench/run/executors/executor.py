"""The protocol of executors: how jobs get to the processors and GPUs that run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...core.record import Machine, Site
from ..events import OnEvent
from ..job import Job

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Resources of one job. `alone`: nothing else may run on its machine meanwhile, as beside a timing on a CPU.

    `seconds`: what it is likely to take; None = unknown.
    """

    gpus: int
    threads: int
    alone: bool = False
    seconds: float | None = None


class Executor(Protocol):
    """Runs jobs. A job never spans two machines, since its timings are compared with each other.

    Whichever machine a job runs on, `run_job` runs it there in a child, so that a death becomes a Record made where
    it happened; an engine's own idea of a failure counts for lost machines only.

    `room`: how many jobs it is given before one of them has ended, infinite for one that queues them. The store is
    asked again before a job is given away.
    """

    room: float

    def submit(self, job: Job, needs: Needs) -> None:
        """Queues a job, which is called by `job.block` from now on, also while `finished` is iterated."""

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        """Jobs in the order in which they end, until none is left.

        `on_event` gets the events of all that runs, in this thread; each Record comes in one of them, before its job
        is yielded. Closing it ends what runs on this machine. Raises WorkerError where the person must act before
        anything can go on.
        """

    def cancel(self, block: str) -> None:
        """Ends a job or takes it out of the queue; Cells of it that have not ended get no Record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """`device`: as a worker sees it. `machine`: this one. `jobs`: how many at once, 0 = as the engine has room.

    `train_threads` may be a share of the cores; `time_threads` never depends on `jobs`, since timings key on them.
    """

    executor: Executor
    site: Site
    device: torch.device
    machine: Machine
    jobs: int
    train_threads: int
    time_threads: int
