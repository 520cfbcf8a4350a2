"""Run a job where an engine has put it, with its events in a file that outlives the engine and the driver."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

from ...core.cell import REFERENCE, Job
from ...core.errors import AttnbenchError, PluginError, StoreError
from ...core.record import Machine
from ...core.registry import TASKS
from ...core.spec import Spec
from ...process.ask import Silent, ask, asking
from ...run.events import CellFinished, Event, Failed
from ...run.executors.run_job import Waiting, WorkerError, run_job, wait_for
from .job_files import CLAIM_SECONDS, JobFiles


def run_here(job: Job, machine: Machine, files: JobFiles, patience: float = math.inf) -> Iterator[Event]:
    """Runs a job and yields its events, which it writes to the job files too.

    It may be started any number of times, by an engine after a lost node or a preemption, or by two commands at once:
    while another process runs the job it waits, for `patience` seconds, and what has a Record by then is not run again.
    """
    ends = time.monotonic() + patience
    while (log := files.claim(job.id)) is None:
        if time.monotonic() > ends:
            return
        time.sleep(CLAIM_SECONDS)
    with closing(log):
        submission = files.submission(job.id)
        if submission is not None and submission.ended:
            files.forget_events(job.id)
            return
        try:
            for event in run_job(_left(job, files), machine):
                if isinstance(event, Waiting):
                    wait_for([event])
                    continue
                log.append(event)
                yield event
        except WorkerError as error:
            with suppress(OSError):
                log.append(Failed(str(error), error.exit_code))
            raise
        except OSError as error:
            raise StoreError(f"cannot write to {files.folder}: {error.strerror or error}") from error


def describe_node(job: Job) -> Machine:
    """This machine, until a child has said what GPU it has."""
    import torch

    from ...measure.machine import describe

    return replace(describe(torch.device("cpu")), threads=job.threads)


def prepare_data(job: Job, files: JobFiles) -> None:
    """Fetches and prepares the data of a job on this machine, once for all jobs here: the others wait for a lock.

    It is done before the child starts, which would be taken to hang. Raises WorkerError where the data cannot be had.
    """
    from ...run.questions import DATA_PATIENCE, FindData

    try:
        for task, preset, selection in dict.fromkeys((c.task, c.preset, c.selection) for c in job.cells):
            question = FindData(
                task=task, preset=preset, selection=selection, data_dir=job.data_dir, offline=job.offline, fetch=True
            )
            with asking():
                ask(TASKS, task.name, question, reporter=Silent(), patience=DATA_PATIENCE)
    except PluginError:
        # its cells get their outcome from the child
        return
    except AttnbenchError as error:
        log = files.claim(job.id)
        if log is not None:
            log.append(Failed(str(error), error.exit_code))
            log.close()
        raise WorkerError(str(error), error.exit_code) from None


def _left(job: Job, files: JobFiles) -> Job:
    """The job without the Cells that an earlier start has Records of."""
    done = {event.record.key for event in files.events(job.id)[0] if isinstance(event, CellFinished)}
    left = tuple(cell for cell in job.cells if cell.key not in done)
    if left and left[0].lane == "time" and all(cell.variant != Spec(REFERENCE) for cell in left):
        # these rounds need their own reference
        left = (*(cell for cell in job.cells if cell.variant == Spec(REFERENCE)), *left)
    return replace(job, cells=left)
