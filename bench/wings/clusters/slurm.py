"""Jobs through Slurm, as job arrays of submitit (extra `slurm`).

A job writes its events into the results folder, which all nodes share, and this process reads them there. Nothing
that Slurm says is a verdict: it is asked only whether a job without all of its Records still waits or runs. One that
does neither was lost, and is submitted again. A job that Slurm preempts, or whose time runs out, goes on from its
checkpoint.

submitit keeps pickles in `jobs/submitit` of the results folder. Whoever may write there can make nodes run anything, so
that a folder that others may write in is refused. Results are never read from pickles.
"""

from __future__ import annotations

import math
import os
import platform
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil

from ...core.cell import Job
from ...core.errors import SelectionError, StoreError
from ...core.files import is_trusted, make_private
from ...core.record import Outcome, Record, Started
from ...process.child import decode_order, encode_order
from ...run.events import CellFinished, CellStarted, JobStarted, OnEvent
from ...run.executors.executor import Needs
from ...run.executors.run_job import WorkerError
from .job_files import Followed, JobFiles, submission_of
from .node import describe_node, prepare_data, run_here
from .settings import SlurmOptions, gigabytes_of, seconds_of

if TYPE_CHECKING:
    import submitit

JOB_NAME = "attnbench"

MOST_LOST = 2
"""The most times that one command submits a job again which the engine lost."""

MOST_TIMEOUTS = 10
"""The most times that a job goes on from its checkpoint after the time that Slurm gives it; then it is a timeout."""

POLL_SECONDS = 2.0
ASK_SECONDS = 30.0
"""Seconds between two looks at the files, and between two questions to Slurm."""

NEARLY = 0.8
"""The share of its time after which an interruption is taken for its end, as submitit takes it."""


class _Stopped(BaseException):
    """Slurm ends this job."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


class RunJob:
    """The function that submitit calls on a node, any number of times, until every Cell has a Record.

    `line`: the job; `seconds`: the time that Slurm gives it each time.
    """

    def __init__(self, line: bytes, seconds: float):
        self.line, self.seconds = line, seconds
        self.timeouts = 0
        self._started = 0.0
        self._is_over = False

    def __call__(self) -> None:
        self._started = time.monotonic()
        job = decode_order(self.line)
        assert isinstance(job, Job)
        job = replace(job, node=os.environ.get("SLURMD_NODENAME") or platform.node())
        files, machine, current = JobFiles(job.results), describe_node(job), job.cells[0]
        by_key = {cell.key: cell for cell in job.cells}
        # Slurm tells every process of a job that it ends: the death of the child is then no fault of its Cell
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            prepare_data(job, files)
            for event in run_here(job, machine, files, patience=60.0):
                if isinstance(event, JobStarted):
                    machine = event.machine
                elif isinstance(event, CellStarted):
                    current = by_key[event.key]
        except (WorkerError, _Stopped):
            # the error stands in the events, from where it is raised again
            return
        except BaseException:
            if self._is_over:
                self._keep_timeout(
                    Record.of(
                        current,
                        Outcome.TIMEOUT,
                        f"over the {self.seconds / 60:g} min that slurm gives a job, {self.timeouts} times",
                        Started(),
                        machine=machine,
                        digest=job.digests[current.key],
                        block=job.id,
                        seconds=round(self.timeouts * self.seconds, 3),
                        executor=job.executor,
                        node=job.node,
                        device=job.device,
                    ),
                    files,
                )
            raise
        finally:
            signal.signal(signal.SIGTERM, before)

    def checkpoint(self) -> Any:
        """The job to submit again, or None. submitit asks on the signal that comes before the end of its time."""
        from submitit.helpers import DelayedSubmission

        if time.monotonic() - self._started >= NEARLY * self.seconds:
            self.timeouts += 1
        self._is_over = self.timeouts > MOST_TIMEOUTS
        return None if self._is_over else DelayedSubmission(self)

    @staticmethod
    def _keep_timeout(record: Record, files: JobFiles) -> None:
        log = files.claim(record.block)
        if log is not None:
            log.append(CellFinished(record))
            log.close()


@dataclass(slots=True)
class _Submitted:
    """`handle`: Slurm's id of it; empty while it waits here. `asked`: when it was last seen waiting or running."""

    followed: Followed
    needs: Needs
    handle: str = ""
    lost: int = 0
    missed: int = 0


class SlurmExecutor:
    """`jobs`: how many of one array run at once; None leaves that to Slurm."""

    room = math.inf

    def __init__(
        self,
        results: Path,
        files: JobFiles,
        options: SlurmOptions,
        jobs: int | None,
        on_warning: Callable[[str], None],
    ):
        self.files, self.options, self.jobs, self.on_warning = files, options, jobs, on_warning
        self.folder = results.absolute() / "jobs" / "submitit"
        self._waiting: deque[_Submitted] = deque()
        self._running: dict[str, _Submitted] = {}
        self._asked = 0.0

    def require(self) -> None:
        """Raises SelectionError without submitit or a Slurm, StoreError for a folder that others may write in."""
        self._engine(Needs(gpus=0, threads=1))

    def submit(self, job: Job, needs: Needs) -> None:
        data_dir = job.data_dir.absolute() if job.data_dir else None
        job = replace(job, executor="slurm", results=job.results.absolute(), data_dir=data_dir)
        known = self.files.submission(job.id)
        entry = _Submitted(Followed(job, self.files), needs)
        if known is not None and not known.ended and known.executor == "slurm" and known.handle:
            # an earlier command submitted it; whether it is lost is found out as for any other
            entry.handle, entry.lost = known.handle, known.lost
            self._running[job.id] = entry
        else:
            self._waiting.append(entry)

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        try:
            yield from self._finished(on_event)
        except WorkerError:
            # all others lack the same
            for block in list(self._running):
                self.cancel(block)
            raise
        finally:
            if self._running:
                handles = " ".join(sorted({entry.handle.partition("_")[0] for entry in self._running.values()}))
                self.on_warning(
                    f"{len(self._running)} jobs go on in slurm; the same command collects them, `attnbench status` "
                    f"shows them, `scancel {handles}` ends them"
                )

    def _finished(self, on_event: OnEvent) -> Iterator[str]:
        with self.files.submitting():
            while self._waiting or self._running:
                self._flush()
                for block, entry in list(self._running.items()):
                    for event in entry.followed.news():
                        on_event(event)
                    if not entry.followed.left:
                        del self._running[block]
                        yield block
                        entry.followed.end()
                yield from self._give_up_lost(on_event)
                if self._running:
                    time.sleep(POLL_SECONDS if self.options.cluster == "slurm" else POLL_SECONDS / 10)

    def cancel(self, block: str) -> None:
        self._waiting = deque(each for each in self._waiting if each.followed.block != block)
        entry = self._running.pop(block, None)
        if entry is None:
            return
        if self.options.cluster == "slurm":
            with suppress(OSError):
                # a job of another name that has got this number by now goes on
                subprocess.run(["scancel", f"--name={JOB_NAME}", entry.handle], check=False, capture_output=True)
        else:
            with suppress(psutil.Error):
                if self._is_process(entry.handle):
                    psutil.Process(int(entry.handle)).terminate()
        self.files.forget(block)

    def _flush(self) -> None:
        """Submits what waits: one array for each kind of needs, or one after another where there are no arrays."""
        entries: list[_Submitted] = []
        while self._waiting and self._has_room(self._waiting[0].needs, entries):
            entries.append(self._waiting.popleft())
        for needs in dict.fromkeys(entry.needs for entry in entries):
            self._submit([entry for entry in entries if entry.needs == needs], replace(needs, seconds=None))

    def _has_room(self, needs: Needs, chosen: Sequence[_Submitted]) -> bool:
        """Slurm queues what it has no room for; submitit's own executors start everything at once."""
        if self.options.cluster == "slurm":
            return True
        beside = [*self._running.values(), *chosen]
        return len(beside) < (self.jobs or 1) and not (beside and (needs.alone or beside[0].needs.alone))

    def _submit(self, entries: Sequence[_Submitted], needs: Needs) -> None:
        for entry in entries:
            # before it is Slurm's: a second start that a kill between the two may cause finds the first one's events
            self.files.submit(replace(submission_of(entry.followed.job, entry.needs.seconds), lost=entry.lost))
        engine = self._engine(needs)
        seconds = float(seconds_of(self.options.time))
        with engine.batch():
            jobs = [engine.submit(RunJob(encode_order(entry.followed.job), seconds)) for entry in entries]
        for entry, job in zip(entries, jobs, strict=True):
            entry.handle, entry.missed = job.job_id, 0
            self._running[entry.followed.block] = entry
            if self.options.cluster == "debug":
                # it runs here and now, and no other command can find it
                job.wait()
                continue
            known = self.files.submission(entry.followed.block)
            if known is not None:
                self.files.submit(replace(known, handle=entry.handle))

    def parameters(self, needs: Needs) -> dict[str, Any]:
        """The parameters of a job, by the names that submitit has for those of sbatch."""
        options = self.options
        more: dict[str, Any] = {name.replace("-", "_"): value for name, value in options.sbatch.items()}
        partition = options.partition or more.pop("partition", None)
        return {
            "name": JOB_NAME,
            "timeout_min": max(seconds_of(options.time) // 60, 1),
            "cpus_per_task": needs.threads,
            "gpus_per_node": needs.gpus or None,
            "mem_gb": gigabytes_of(options.memory) if options.memory else None,
            "nodes": 1,
            "tasks_per_node": 1,
            "slurm_partition": partition,
            "slurm_exclusive": True if needs.alone else None,
            "slurm_array_parallelism": self.jobs or 256,
            # a step gets one processor unless it is told, since Slurm 22.05
            "slurm_srun_args": [f"--cpus-per-task={needs.threads}"],
            "slurm_additional_parameters": more or None,
        }

    def preview(self, needs: Needs) -> str:
        """The parameters of a job in words, for `plan`."""
        given = self.parameters(needs)
        given |= given.pop("slurm_additional_parameters") or {}
        told = {name.removeprefix("slurm_"): value for name, value in given.items() if value is not None}
        del told["srun_args"]
        return "slurm gets for each job: " + ", ".join(f"{name}={value}" for name, value in told.items())

    def _engine(self, needs: Needs) -> submitit.AutoExecutor:
        try:
            import submitit
        except ImportError:
            raise SelectionError("expected submitit for --executor slurm: pip install submitit") from None
        options = self.options
        make_private(self.folder)
        if self.folder.is_symlink() or not is_trusted(self.folder):
            raise StoreError(
                f"expected a folder that nobody else can write in, got {self.folder}: submitit keeps there what the "
                "nodes run; name other --results, or take the rights of others away"
            )
        try:
            engine = submitit.AutoExecutor(
                self.folder / "%j", cluster=options.cluster, slurm_max_num_timeout=MOST_TIMEOUTS + 1
            )
        except RuntimeError as error:
            raise SelectionError(
                f"expected a machine that can submit to slurm: {error}; --executor-option cluster=local tries it here"
            ) from None
        engine.update_parameters(**self.parameters(needs))
        return engine

    def _give_up_lost(self, on_event: OnEvent) -> Iterator[str]:
        """Submits again what the engine no longer knows, or yields it where that has happened too often."""
        every = ASK_SECONDS if self.options.cluster == "slurm" else POLL_SECONDS / 2
        if time.monotonic() - self._asked < every:
            return
        self._asked = time.monotonic()
        alive = self._alive()
        for block, entry in list(self._running.items()) if alive is not None else ():
            if entry.handle in (alive or ()) or self.files.is_running(block):
                entry.missed = 0
                continue
            # its last words may still be on their way through the file system
            entry.missed += 1
            if entry.missed < 2:
                continue
            for event in entry.followed.news():
                on_event(event)
            if not entry.followed.left:
                continue
            del self._running[block]
            entry.lost += 1
            if entry.lost <= MOST_LOST:
                self.on_warning(f"slurm lost {entry.handle}, which ran the job {block}; it is submitted again")
                self._waiting.append(entry)
                continue
            self.on_warning(
                f"slurm lost job {block} {entry.lost} times, and its cells have no Record; the log of the last time "
                f"is in {self.folder / entry.handle}; the same command tries again"
            )
            self.files.forget(block)
            yield block

    def _alive(self) -> set[str] | None:
        """The handles of what waits or runs; None where the engine does not say."""
        if self.options.cluster != "slurm":
            return {entry.handle for entry in self._running.values() if self._is_process(entry.handle)}
        command = ["squeue", "--array", "--noheader", "--format=%i", f"--user={os.getuid()}"]
        try:
            said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return None
        return set(said.stdout.split())

    def _is_process(self, handle: str) -> bool:
        """True if the process of this number is submitit's own for a job of this folder, and lives."""
        try:
            found = psutil.Process(int(handle))
            words = found.cmdline() if found.status() != psutil.STATUS_ZOMBIE else []
        except (psutil.Error, ValueError):
            return False
        return "submitit.local._local" in words and any(word.startswith(f"{self.folder}/") for word in words)
