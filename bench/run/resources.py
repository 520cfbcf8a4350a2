"""Resources: the devices and threads that the jobs of a run get, and the executor that brings them there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.errors import SelectionError
from ..core.record import Machine, Site
from ..measure.machine import choose_device, describe
from ..plan.executor_settings import ExecutorSettings, LocalOptions, SlurmOptions
from .executors.executor import Executor, Needs
from .executors.local import LocalExecutor
from .executors.ray import RayExecutor
from .executors.run_job import describe_in_child
from .executors.slurm import SlurmExecutor
from .job_files import JobFiles

NODE_THREADS = 4
"""Threads of a job on a node whose cores are not known."""


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

    def needs(self, lane: str, seconds: float | None) -> Needs:
        """Those of a job of this lane; a timing on a processor has its machine to itself."""
        is_timing, on_gpu = lane == "time", self.device.type == "cuda"
        return Needs(
            gpus=int(on_gpu),
            threads=self.time_threads if is_timing else self.train_threads,
            alone=is_timing and not on_gpu,
            seconds=seconds,
        )


def find_resources(
    settings: ExecutorSettings,
    device: str | None,
    threads: int,
    results: Path,
    on_warning: Callable[[str], None],
    executor: Executor | None = None,
) -> Resources:
    """Those that the settings name; `executor` takes the place of this machine's own. Raises as `local_resources`."""
    if isinstance(settings.options, LocalOptions) or executor is not None:
        return local_resources(settings, device, threads, on_warning, executor)
    options, files = settings.options, JobFiles(results)
    chosen = device or ("cuda" if options.gpus else "cpu")
    _require(chosen in ("cpu", "cuda"), "cpu or cuda as the device of nodes", repr(chosen))
    _require(chosen == "cuda" or not options.gpus, "--device cuda beside gpus=1", chosen)
    share = timed = threads or options.cpus or 0
    if isinstance(options, SlurmOptions):
        executor = SlurmExecutor(results, files, options, settings.jobs, on_warning)
    else:
        if not options.address:
            cores = len(os.sched_getaffinity(0))
            share, timed = share or max(1, cores // (settings.jobs or 1)), timed or cores
        share, timed = share or NODE_THREADS, timed or NODE_THREADS
        executor = RayExecutor(results, files, options, settings.jobs, on_warning)
    torch.set_num_threads(min(timed, len(os.sched_getaffinity(0))))
    return Resources(
        executor=executor,
        site=Site(machine_id="", executor=settings.name, on_gpu=chosen == "cuda", threads=timed),
        device=torch.device("cuda:0" if chosen == "cuda" else "cpu"),
        machine=describe(torch.device("cpu")),
        jobs=settings.jobs or 0,
        train_threads=share,
        time_threads=timed,
    )


def local_resources(
    settings: ExecutorSettings,
    device: str | None,
    threads: int,
    on_warning: Callable[[str], None],
    executor: Executor | None = None,
) -> Resources:
    """Those of this machine. `threads`: of each job, 0 for its share of the cores.

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
        _require(len(devices) <= max(cores, 2), f"from 1 to {cores:,} jobs on {cores:,} cores", f"{len(devices):,}")
        torch.set_num_threads(timed)
        machine = describe(chosen)
    jobs = min(settings.jobs or len(devices), len(devices))
    if settings.jobs and jobs < settings.jobs:
        on_warning(f"{settings.jobs:,} jobs were asked for: each GPU runs one at once, so {jobs:,} here")
    in_all = f"at most {cores:,} threads in all, as this machine has cores"
    _require(jobs == 1 or jobs * share <= max(cores, 2), in_all, f"{jobs:,} jobs of {share:,} threads")
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


def _require(holds: bool, expected: str, got: str) -> None:
    if not holds:
        raise SelectionError(f"expected {expected}, got {got}")
