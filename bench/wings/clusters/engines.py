"""The entry points of Slurm and Ray: their options, the resources of a job on a node, and what earlier jobs left.

This module is read whenever a suite names an executor, so that PyTorch and the engines are imported inside functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...core.errors import SelectionError
from ...plan.executor_settings import ExecutorSettings
from .settings import RayOptions, SlurmOptions

if TYPE_CHECKING:
    from ...run.events import CellFinished
    from ...run.executors.executor import Executor, JobStatus, Resources

NODE_THREADS = 4
"""Threads of a job on a node whose cores are not known."""


class Slurm:
    """Jobs as arrays of sbatch, through submitit."""

    name: ClassVar[str] = "slurm"
    options = SlurmOptions

    @classmethod
    def resources(
        cls,
        settings: ExecutorSettings,
        device: str | None,
        threads: int,
        results: Path,
        on_warning: Callable[[str], None],
        submits: bool,
    ) -> Resources:
        """The resources of a job on a node. Raises SelectionError for a device that the options do not ask for.

        submits: raise it also on a machine that cannot submit, before anybody prepares data for hours.
        """
        from .job_files import JobFiles
        from .slurm import SlurmExecutor

        options = settings.options
        assert isinstance(options, SlurmOptions)
        executor = SlurmExecutor(results, JobFiles(results), options, settings.jobs, on_warning)
        if submits:
            executor.require()
        count = threads or options.cpus
        return _on_a_node(executor, settings, device, options.gpus, count, count)

    @classmethod
    def collected(cls, results: Path, on_warning: Callable[[str], None]) -> Iterator[CellFinished]:
        """Records of jobs whose submitting command has ended; what has ended is forgotten first."""
        from .job_files import JobFiles

        files = JobFiles(results)
        files.forget_ended(cls.name)
        yield from files.collected(cls.name, on_warning)

    @classmethod
    def status(cls, results: Path) -> tuple[list[JobStatus], bool]:
        """The jobs of the last run in the order of being submitted, and whether a command that submits is at work."""
        from .status import status_of

        return status_of(results, cls.name)


class Ray(Slurm):
    """Jobs as tasks of Ray; job files are the same as those of Slurm."""

    name: ClassVar[str] = "ray"
    options = RayOptions  # type: ignore[assignment]

    @classmethod
    def resources(
        cls,
        settings: ExecutorSettings,
        device: str | None,
        threads: int,
        results: Path,
        on_warning: Callable[[str], None],
        submits: bool,
    ) -> Resources:
        """The resources of a task; without an address the cores of this machine are shared among the jobs."""
        from .job_files import JobFiles
        from .ray import RayExecutor

        options = settings.options
        assert isinstance(options, RayOptions)
        share = timed = threads or options.cpus or 0
        if not options.address:
            cores = len(os.sched_getaffinity(0))
            share, timed = share or max(1, cores // (settings.jobs or 1)), timed or cores
        executor = RayExecutor(results, JobFiles(results), options, settings.jobs, on_warning)
        return _on_a_node(executor, settings, device, options.gpus, share or NODE_THREADS, timed or NODE_THREADS)


def _on_a_node(
    executor: Executor, settings: ExecutorSettings, device: str | None, gpus: int | None, share: int, timed: int
) -> Resources:
    import torch

    from ...core.record import Site
    from ...measure.machine import describe
    from ...run.executors.executor import Resources

    chosen = device or ("cuda" if gpus else "cpu")
    if chosen not in ("cpu", "cuda"):
        raise SelectionError(f"expected cpu or cuda as the device of nodes, got {chosen!r}")
    if chosen == "cpu" and gpus:
        raise SelectionError(f"expected --device cuda beside gpus=1, got {chosen}")
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
