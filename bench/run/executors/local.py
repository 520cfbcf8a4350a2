"""Jobs on this machine: its devices and threads; one job at a time on each GPU, or several on the processor.

A timing job has its GPU to itself, as every job has. On the processor it has the machine to itself: a neighbour that
trains takes cores, caches and memory bandwidth, and its load would stand in the numbers.
"""

from __future__ import annotations

import os
import platform
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil
import torch

from ...core.cell import Job
from ...core.errors import SelectionError
from ...core.hashing import content_hash
from ...core.record import Machine, Outcome
from ...measure.devices import devices
from ...measure.machine import choose_device, describe
from ...plan.executor_settings import ExecutorSettings
from ...store.store import Site
from ..events import CellFinished, Event, OnEvent
from .executor import Executor, Needs, Resources
from .run_job import Waiting, describe_in_child, run_job, wait_for

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
                for job_id, run in list(self._running.items()):
                    for event in run.events:
                        if isinstance(event, Waiting):
                            waiting.append(event)
                            break
                        if isinstance(event, CellFinished):
                            if run.beside and not run.needs.gpus and event.record.outcome is Outcome.OUT_OF_MEMORY:
                                # beside another, that is no property of the Cell: it is run again, alone
                                run.starved = True
                                continue
                            run.left.discard(event.record.key)
                        on_event(event)
                    else:
                        # it has ended, and was not cancelled by whoever got its events
                        if job_id in self._running:
                            self._release(job_id)
                            if not run.starved:
                                yield job_id
                if len(waiting) == len(self._running) > 0:
                    wait_for(waiting)
        finally:
            for job_id in list(self._running):
                self.cancel(job_id)

    def cancel(self, job_id: str) -> None:
        self._queue = deque(each for each in self._queue if each[0].id != job_id)
        if job_id in self._running:
            run = self._running[job_id]
            run.starved = False
            # its child has ended once this returns
            run.events.close()
            self._release(job_id)

    def _start(self) -> None:
        """Starts as many as there are devices and there is room for, in the order of the queue."""
        while self._queue and self._free:
            job, needs = self._queue[0]
            if self._running and (needs.alone or any(run.needs.alone for run in self._running.values())):
                break
            if self._running and not needs.gpus:
                self._largest_bytes = max(self._largest_bytes, _largest_child_bytes())
                if psutil.virtual_memory().available <= self._largest_bytes:
                    break
            self._queue.popleft()
            job = replace(job, gpu=self._free.pop(0))
            machine = replace(self.machine, threads=job.threads or self.machine.threads)
            self._running[job.id] = _LocalJob(job, needs, run_job(job, machine), {cell.key for cell in job.cells})
            if len(self._running) > 1:
                for each in self._running.values():
                    each.beside = True

    def _release(self, job_id: str) -> None:
        run = self._running.pop(job_id)
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


def local_resources(
    settings: ExecutorSettings,
    device: str | None,
    threads: int,
    on_warning: Callable[[str], None],
    executor: Executor | None = None,
) -> Resources:
    """The resources of this machine. `threads`: of each job, 0 for its share of the cores.

    With fewer GPUs than jobs, as where a suite's count suits a processor, each GPU gets one job at once, with a
    warning. Raises SelectionError for more jobs or threads than cores, DeviceError for a device that it lacks.
    """
    cores = len(os.sched_getaffinity(0))
    chosen = choose_device(device)
    if chosen.type == "cuda":
        machine, devices = _gpus(chosen, threads or 1, on_warning)
        # the same for all of them, however many are used, since timings key on it
        share = threads or max(1, cores // len(devices))
        timed = share
    else:
        devices = ("",) * (settings.jobs or 1)
        share, timed = threads or max(1, cores // len(devices)), threads or cores
        if len(devices) > max(cores, 2):
            raise SelectionError(f"expected from 1 to {cores:,} jobs on {cores:,} cores, got {len(devices):,}")
        torch.set_num_threads(timed)
        machine = describe(chosen)
    jobs = min(settings.jobs or len(devices), len(devices))
    if settings.jobs and jobs < settings.jobs:
        on_warning(f"{settings.jobs:,} jobs were asked for: each GPU runs one at once, so {jobs:,} here")
    if jobs > 1 and jobs * share > max(cores, 2):
        raise SelectionError(
            f"expected at most {cores:,} threads in all, as this machine has cores, got {jobs:,} jobs of {share:,} "
            "threads"
        )
    torch.set_num_threads(timed)
    machine = replace(machine, threads=timed)
    return Resources(
        executor=executor or LocalExecutor(machine, devices[:jobs]),
        site=Site(machine_id=machine.id, threads=timed),
        device=torch.device("cuda:0" if chosen.type == "cuda" else "cpu"),
        machine=machine,
        jobs=jobs,
        train_threads=share,
        time_threads=timed,
    )


def _gpus(chosen: torch.device, threads: int, on_warning: Callable[[str], None]) -> tuple[Machine, tuple[str, ...]]:
    """This machine with its first GPU, and all GPUs of that kind, as CUDA_VISIBLE_DEVICES names them.

    One that is named by its index is the only one. Those of another kind are left idle: speeds of two kinds are never
    compared.
    """
    described = describe_in_child(str(chosen), threads)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    first = chosen.index or 0
    names = [visible[at].strip() if len(visible) > at and visible[at].strip() else str(at)
             for at in range(first, first + len(described))]  # fmt: skip
    same = [name for name, machine in zip(names, described, strict=True) if machine.id == described[0].id]
    for name, machine in zip(names, described, strict=True):
        if machine.id != described[0].id:
            on_warning(
                f"GPU {name} ({', '.join(machine.accelerators)}) is left idle, since the speeds of two kinds are not "
                f"compared; `--device cuda:{names.index(name)}` runs on it alone"
            )
    return described[0], tuple(same)


def is_elsewhere(settings: ExecutorSettings, device: str | None) -> bool:
    """True if jobs on this machine ask for a GPU that it lacks, or for a card by its name."""
    wanted = re.fullmatch(r"cuda(:\d+)?", device or "") is not None and not torch.cuda.device_count()
    return settings.name == "local" and (wanted or device in devices())


def planned_resources(settings: ExecutorSettings, threads: int) -> Resources:
    """One GPU, or as many as there are jobs, of a machine that is not this one: enough to plan with."""
    machine = describe(torch.device("cpu"))
    return Resources(
        executor=LocalExecutor(machine, ()),
        site=Site(machine_id="", on_gpu=True, threads=threads or 1),
        device=torch.device("cuda:0"),
        machine=machine,
        jobs=settings.jobs or 1,
        train_threads=threads or 1,
        time_threads=threads or 1,
    )
