"""The entry points of Slurm and Ray: their options, the resources of a job on a node, and what earlier jobs left.

This module is read whenever a suite names an executor, so that PyTorch and the engines are imported inside functions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...core.errors import SelectionError
from ...core.record import Outcome
from ...run.events import CellFinished, JobStarted, TrainingProgress
from ...run.executors.executor import Executor, JobState, JobStatus, Needs, Resources
from ...store.store import Site, Store
from .job_files import JobFiles, Submission
from .settings import RayOptions, SlurmOptions

if TYPE_CHECKING:
    from ...plan.options import Options

NODE_THREADS = 4
"""Threads of a job on a node whose cores are not known."""


class _ByJobFiles:
    """Jobs that outlive their command in job files, from which it is read what they left and how they stand."""

    name: ClassVar[str]

    @classmethod
    def collected(cls, results: Path, on_warning: Callable[[str], None]) -> Iterator[CellFinished]:
        """Records of jobs whose submitting command has ended; what has ended is forgotten first."""
        files = JobFiles(results)
        files.forget_ended(cls.name)
        yield from files.collected(cls.name, on_warning)

    @classmethod
    def status(cls, results: Path) -> tuple[list[JobStatus], bool]:
        """The jobs of the last run in the order of being submitted, and whether a command that submits is at work.

        It is as the job files tell it: nothing is written and no engine asked.
        """
        files = JobFiles(results)
        submitting = files.is_submitting
        submissions = [each for each in files.submissions() if each.executor == cls.name]
        stored: set[tuple[str, str]] = set()
        if any(not each.ended for each in submissions):
            stored = {(record.block, record.key) for record in Store(results, lambda text: None).records()}
        return [_status(each, files, submitting, stored) for each in submissions], submitting


class Slurm(_ByJobFiles):
    """Jobs as arrays of sbatch, through submitit."""

    name = "slurm"
    options = SlurmOptions

    @classmethod
    def resources(cls, options: Options, on_warning: Callable[[str], None], submits: bool) -> Resources:
        """The resources of a job on a node. Raises SelectionError for a device that the options do not ask for.

        submits: raise it also on a machine that cannot submit, before anybody prepares data for hours.
        """
        from .slurm import SlurmExecutor

        asked, results = options.executor.options, options.results
        assert isinstance(asked, SlurmOptions)
        executor = SlurmExecutor(results, JobFiles(results), asked, options.executor.jobs, on_warning)
        count = options.threads or asked.cpus
        if submits:
            executor.require()
        else:
            on_warning(executor.preview(Needs(gpus=asked.gpus or 0, threads=count)))
        return _on_a_node(executor, options, asked.gpus, count, count)


class Ray(_ByJobFiles):
    """Jobs as tasks of Ray."""

    name = "ray"
    options = RayOptions

    @classmethod
    def resources(cls, options: Options, on_warning: Callable[[str], None], submits: bool) -> Resources:
        """The resources of a task; without an address the cores of this machine are shared among the jobs."""
        from .ray import RayExecutor

        asked, results, jobs = options.executor.options, options.results, options.executor.jobs
        assert isinstance(asked, RayOptions)
        share = timed = options.threads or asked.cpus or 0
        if not asked.address:
            cores = len(os.sched_getaffinity(0))
            share, timed = share or max(1, cores // (jobs or 1)), timed or cores
        executor = RayExecutor(results, JobFiles(results), asked, jobs, on_warning)
        return _on_a_node(executor, options, asked.gpus, share or NODE_THREADS, timed or NODE_THREADS)


def _on_a_node(executor: Executor, options: Options, gpus: int | None, share: int, timed: int) -> Resources:
    import torch

    from ...measure.machine import describe

    settings, chosen = options.executor, options.device or ("cuda" if gpus else "cpu")
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


def _status(submission: Submission, files: JobFiles, submitting: bool, stored: set[tuple[str, str]]) -> JobStatus:
    events, _ = files.events(submission.block)
    began = [event for event in events if isinstance(event, JobStarted)]
    progress = [event for event in events if isinstance(event, TrainingProgress) and event.metric]
    outcomes = submission.outcomes or Counter(
        str(event.record.outcome) for event in events if isinstance(event, CellFinished)
    )
    is_running = not submission.ended and files.is_running(submission.block)
    state: JobState = "queued"
    # a command that was killed between the two has stored all Records, and not noted that the job has ended
    is_stored = not is_running and all((submission.block, key) in stored for key in submission.cells)
    if submission.ended or is_stored:
        state = "done" if set(outcomes) <= {str(Outcome.OK)} else "failed"
    elif is_running:
        state = "running"
    elif began or not (submitting or submission.executor == "slurm"):
        # Slurm keeps its queue without us; all else waits in the process that submits
        state = "interrupted"
    since, left = submission.ended or submission.submitted, submission.seconds
    if is_running and began:
        started = datetime.fromtimestamp(began[-1].time, UTC)
        since = started.isoformat(timespec="seconds")
        # the clock may have been set back since, or be another machine's
        spent = max((datetime.now(UTC) - started).total_seconds(), 0.0)
        if progress and progress[-1].done:
            last = progress[-1]
            # what was made before this start is no measure of its speed
            first = next((event.done for event in progress if event.key == last.key), 0)
            pace = spent / max(last.done - min(first, last.done - 1), 1)
            left = pace * (last.of - last.done)
        elif left is not None:
            left = max(left - spent, 0.0)
    cells = list(submission.cells.values()) or [submission.lane]
    return JobStatus(
        block=submission.block,
        state=state,
        what=cells[0] + (f" and {len(cells) - 1} more" if len(cells) > 1 else ""),
        executor=submission.executor,
        handle=submission.handle,
        node=began[-1].node if began else submission.node,
        device=began[-1].device if began else "",
        since=since,
        done=progress[-1].done if progress and is_running else 0,
        steps=progress[-1].of if progress and is_running else 0,
        left=None if submission.ended else left,
        outcomes=outcomes,
    )
