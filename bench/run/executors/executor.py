"""The protocol of executors: how jobs get to the processors and GPUs that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ...core.cell import Job
from ...core.decode import to_builtins
from ...core.record import Machine
from ...store.store import Site
from ..events import CellFinished, OnEvent

if TYPE_CHECKING:
    import torch

    from ...plan.options import Options

JOBS = "jobs"
"""The folder of the results in which an engine keeps what outlives its command; without it no engine is asked."""

JobState = Literal["queued", "running", "done", "failed", "interrupted"]


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
        """Queues a job, which is called by `job.id` from now on, also while `finished` is iterated."""

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        """Jobs in the order in which they end, until none is left.

        `on_event` gets the events of all that runs, in this thread; each Record comes in one of them, before its job
        is yielded. Closing it ends what runs on this machine. Raises WorkerError where the person must act before
        anything can go on.
        """

    def cancel(self, job_id: str) -> None:
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


class Engine(Protocol):
    """An entry point of `attnbench.executors`: it runs jobs elsewhere, by `--executor NAME`.

    `options`: the type of its options. Its module imports neither PyTorch nor the engine before a method is called.
    """

    name: str
    options: type[msgspec.Struct]

    def resources(self, options: Options, on_warning: Callable[[str], None], submits: bool) -> Resources:
        """The executor and what one job gets. Raises SelectionError where the options do not fit together.

        submits: whether jobs follow, or a plan alone.
        """

    def collected(self, results: Path, on_warning: Callable[[str], None]) -> Iterator[CellFinished]:
        """The Records that jobs of an earlier command left in `results`, each to be stored at once."""

    def status(self, results: Path) -> tuple[list[JobStatus], bool]:
        """The jobs of the last run, in the order of being submitted, and whether a command still submits some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """`since`: UTC, when it was submitted, started or ended. `left`: likely seconds. `steps`: of a training, else 0."""

    block: str
    state: JobState
    what: str
    executor: str
    handle: str
    node: str
    device: str
    since: str
    done: int = 0
    steps: int = 0
    left: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_builtins(self)
        return found
