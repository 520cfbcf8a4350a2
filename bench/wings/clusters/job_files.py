"""Job files: what was submitted and how far it is, in the folder `jobs` of the results; `attnbench status` reads them.

jobs/BLOCK.json      a Submission, written by the process that submits, whole or not at all
jobs/BLOCK.events    lines of `events.py`, appended by the one process that runs the job
jobs/driver          locked by every process that submits

Whoever runs a job holds a lock on its events, so that a second start of it, which an engine may make after a lost
node or a person by a second command, waits and then finds it done. Locks end with their process. They reach other
machines where the file system passes them on, as NFS and Lustre do with their usual options.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from ...core.cell import Job, Lane
from ...core.decode import (
    MOST_LINE_BYTES,
    Count,
    CountByName,
    Name,
    NameByName,
    Seconds,
    convert,
    parse_json,
    to_builtins,
)
from ...core.errors import AttnbenchError, StoreError
from ...core.files import made_folder, open_regular, open_to_append, read_regular, replacing
from ...run.events import Alive, CellFinished, CellStarted, Event, Failed, JobStarted, TrainingProgress, decode, encode
from ...run.executors.executor import JOBS
from ...run.executors.run_job import WorkerError
from ...store.store import way_out

QUIET_SECONDS = 10.0
"""Seconds between two reports of a job: a thousand nodes share one file system."""

CLAIM_SECONDS = 0.5
"""Seconds between two looks at a job that runs elsewhere."""

_BLOCK = re.compile(r"[0-9a-f]{6,64}")

Handle = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,18}(_[0-9]{1,9})?)?\Z")]
"""The name that an engine gives a job, such as `123_4`; no other text comes near `scancel` or a shell."""

_LARGEST_SUBMISSION = 4 * 2**20
_MOST_EVENTS = 2**27
"""Bytes of the events of a job that are read at once: a week of one takes a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was given to an executor. `cells`: in words, by key. `handle`: empty while the engine has no job.

    `seconds`: what it is likely to take. `node`: where it ran, once it has ended. `submitted`, `ended`: UTC, ISO 8601;
    `ended` is empty until its Records are stored, and `outcomes` counts them then. `lost`: times the engine lost it.
    """

    block: Name
    lane: Lane
    cells: NameByName
    executor: Name
    handle: Handle = ""
    submitted: Name = ""
    seconds: Seconds | None = None
    node: Name = ""
    threads: Count = 0
    lost: Count = 0
    ended: Name = ""
    outcomes: CountByName = field(default_factory=dict)


class JobFiles:
    """The job files of one results folder. Raises StoreError where they cannot be read or written."""

    def __init__(self, results: Path):
        self.folder = results / JOBS

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Hold the lock that tells others that a process which submits is at work."""
        with self._writing():
            self._make()
            descriptor = open_to_append(self.folder / "driver")
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def forget_ended(self, executor: str) -> None:
        """Remove ended jobs before a run, whose status is of the last one; none while another process submits."""
        ended = [each.block for each in self.submissions() if each.ended and each.executor == executor]
        if ended and not self.is_submitting:
            for block in ended:
                self.forget(block)

    @property
    def is_submitting(self) -> bool:
        """True if a process that submits is at work."""
        return self._is_locked(self.folder / "driver")

    def submit(self, submission: Submission) -> None:
        """Writes a submission, in the place of one of the same job."""
        content = msgspec.json.encode(to_builtins(submission))
        with self._writing(), replacing(self._submission(submission.block)) as file:
            file.write(content)

    def end(self, block: str, outcomes: dict[str, int]) -> None:
        """Marks a job whose Records are stored, and removes its events."""
        found = self.submission(block)
        if found is not None:
            nodes = [event.node for event in self.events(block)[0] if isinstance(event, JobStarted)]
            self.submit(replace(found, ended=now(), outcomes=outcomes, node=nodes[-1] if nodes else ""))
        self.forget_events(block)

    def forget_events(self, block: str) -> None:
        """Removes the events of a job, whose Records are stored."""
        with self._writing():
            self._events(block).unlink(missing_ok=True)

    def forget(self, block: str) -> None:
        """Removes all about a job, which is no longer queued anywhere."""
        self.forget_events(block)
        with self._writing():
            self._submission(block).unlink(missing_ok=True)

    def submission(self, block: str) -> Submission | None:
        """The submission of a job; None where there is none that reads."""
        try:
            found = convert(Submission, parse_json(read_regular(self._submission(block), _LARGEST_SUBMISSION)), "a job")
        except (OSError, StoreError):
            return None
        return found if found.block == block else None

    def submissions(self) -> list[Submission]:
        """The submissions that were made and not forgotten, oldest first."""
        found = [submission for name in self._blocks("json") if (submission := self.submission(name)) is not None]
        return sorted(found, key=lambda each: each.submitted)

    def blocks_with_events(self) -> list[str]:
        """The jobs whose Records may not all be stored."""
        return self._blocks("events")

    def collected(self, executor: str, on_warning: Callable[[str], None]) -> Iterator[CellFinished]:
        """Yields what jobs of an executor have measured since their submitting process ended, each to be stored.

        Records of cells that no submission names are left where they are, and `on_warning` is told.
        """
        for block in self.blocks_with_events():
            submission = self.submission(block)
            if submission is not None and submission.executor != executor:
                continue
            asked = set(submission.cells) if submission else set()
            found = [event for event in self.events(block)[0] if isinstance(event, CellFinished)]
            own = [event for event in found if event.record.key in asked and event.record.block == block]
            strange = [event.record.cell for event in found if event not in own]
            if strange:
                # whoever may write in the folder may have written them
                on_warning(
                    f"{len(strange)} Records in {self.folder / block}.events are not stored: expected cells that "
                    f"{block}.json names, got `{strange[0]}`; delete the file if nobody needs them"
                )
            yield from own
            if asked and asked <= {event.record.key for event in own}:
                self.end(block, Counter(str(event.record.outcome) for event in own))

    def events(self, block: str, start: int = 0) -> tuple[list[Event], int]:
        """The events of a job from a byte of the file on, and the byte behind the last whole line.

        A line that is no event is passed over, and so is what lies beyond _MOST_EVENTS: the next start of its job
        measures again what is missing.
        """
        found: list[Event] = []
        try:
            with open_regular(self._events(block), follow=False) as file:
                file.seek(start)
                most = start + _MOST_EVENTS
                while start < most and (line := file.readline(2 * MOST_LINE_BYTES)).endswith(b"\n"):
                    start += len(line)
                    with suppress(AttnbenchError, ValueError, RecursionError, msgspec.DecodeError):
                        found.append(decode(line))
        except OSError:
            pass
        return found, start

    def is_running(self, block: str) -> bool:
        """True if a process, here or elsewhere, holds the events of the job."""
        return self._is_locked(self._events(block))

    def claim(self, block: str) -> EventLog | None:
        """The events of a job to be written; None where another process runs it. The caller closes it."""
        with self._writing():
            self._make()
            descriptor = open_to_append(self._events(block))
        if not _locked(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return None
        with self._writing():
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                # a process that died while it wrote left half a line, which must not begin the next one
                os.write(descriptor, b"\n")
        return EventLog(descriptor)

    def _make(self) -> None:
        # a link would lead writing and deleting to another folder
        with made_folder(self.folder):
            pass

    def _blocks(self, kind: str) -> list[str]:
        """The jobs with a file of this kind; where the folder is a link, nothing in it is ours."""
        try:
            paths = [] if self.folder.is_symlink() else list(self.folder.glob(f"*.{kind}"))
        except OSError:
            return []
        return sorted(path.stem for path in paths if _BLOCK.fullmatch(path.stem))

    def _submission(self, block: str) -> Path:
        return self.folder / f"{block}.json"

    def _events(self, block: str) -> Path:
        return self.folder / f"{block}.events"

    @staticmethod
    def _is_locked(path: Path) -> bool:
        """True if anybody holds a lock on it; nothing is written, though NFS asks for the right to."""
        try:
            with open_regular(path, follow=False):
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locked(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.folder}: {error.strerror or error}; {way_out(error)} --results FOLDER"
            ) from error


class EventLog:
    """The events of a job, open for the one process that runs it."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._written = 0.0

    def append(self, event: Event) -> None:
        """Adds a line; of a Cell's progress only now and then. A Record is on disk when this returns.

        Raises OSError where it cannot be written.
        """
        if isinstance(event, TrainingProgress | Alive | CellStarted):
            if time.monotonic() - self._written < QUIET_SECONDS:
                return
            self._written = time.monotonic()
        line = encode(event)
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            # half a line would spoil the next one
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise
        if isinstance(event, CellFinished):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(slots=True)
class Followed:
    """A job and how far its events were read; `left`: keys of Cells without a Record."""

    job: Job
    files: JobFiles
    read: int = 0
    left: set[str] = field(init=False)
    outcomes: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self.left = {cell.key for cell in self.job.cells}

    @property
    def block(self) -> str:
        return self.job.id

    def news(self) -> Iterator[Event]:
        """Yields the events since the last call; see `taken`."""
        events, self.read = self.files.events(self.block, self.read)
        yield from self.taken(events)

    def taken(self, events: list[Event]) -> Iterator[Event]:
        """Yields events of this job. Raises WorkerError where the person must act.

        Records of other Cells than those of the job are passed over: whoever may write in the folder wrote them.
        """
        cells = {cell.key: cell for cell in self.job.cells}
        for event in events:
            if isinstance(event, Failed):
                # the next start of the job must not meet it again
                self.files.forget(self.block)
                raise WorkerError(event.message, event.exit_code)
            if isinstance(event, CellFinished):
                if event.record.cell != cells.get(event.record.key):
                    continue
                if event.record.key in self.left:
                    self.left.remove(event.record.key)
                    self.outcomes[str(event.record.outcome)] += 1
            yield event

    def end(self) -> None:
        """Marks the job as done, once its Records are stored."""
        self.files.end(self.block, self.outcomes)


def submission_of(job: Job, seconds: float | None) -> Submission:
    """A job that is about to be given to its executor."""
    return Submission(
        block=job.id,
        lane=job.cells[0].lane,
        cells={cell.key: str(cell) for cell in job.cells},
        executor=job.executor,
        submitted=now(),
        seconds=seconds,
        threads=job.threads,
    )


def now() -> str:
    """The time as job files have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _locked(descriptor: int, kind: int) -> bool:
    """True if the lock was had at once; also where the file system knows none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
