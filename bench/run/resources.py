"""Resources of jobs that an engine such as Slurm brings to its nodes; those of this machine: `executors/local.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

from ..core.errors import SelectionError
from ..core.record import Site
from ..measure.machine import describe
from ..plan.executor_settings import ExecutorSettings, LocalOptions, SlurmOptions
from ..wings.clusters.job_files import JobFiles
from ..wings.clusters.ray import RayExecutor
from ..wings.clusters.slurm import SlurmExecutor
from .executors.executor import Executor, Resources
from .executors.local import LocalExecutor

NODE_THREADS = 4
"""Threads of a job on a node whose cores are not known."""


def is_elsewhere(settings: ExecutorSettings, device: str | None) -> bool:
    """Whether jobs on this machine ask for a GPU that it lacks."""
    wanted = re.fullmatch(r"cuda(:\d+)?", device or "") is not None
    return settings.name == "local" and wanted and not torch.cuda.device_count()


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


def engine_resources(
    settings: ExecutorSettings, device: str | None, threads: int, results: Path, on_warning: Callable[[str], None],
    submits: bool,
) -> Resources:  # fmt: skip
    """The resources of a job on a node. Raises SelectionError for a device that the options do not ask for.

    submits: raise it also on a machine that cannot submit to Slurm, before anybody prepares data for hours.
    """
    options, files = settings.options, JobFiles(results)
    assert not isinstance(options, LocalOptions), "the resources of this machine: executors/local.py"
    chosen = device or ("cuda" if options.gpus else "cpu")
    if chosen not in ("cpu", "cuda"):
        raise SelectionError(f"expected cpu or cuda as the device of nodes, got {chosen!r}")
    if chosen == "cpu" and options.gpus:
        raise SelectionError(f"expected --device cuda beside gpus=1, got {chosen}")
    share = timed = threads or options.cpus or 0
    executor: Executor
    if isinstance(options, SlurmOptions):
        executor = slurm = SlurmExecutor(results, files, options, settings.jobs, on_warning)
        if submits:
            slurm.require()
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
