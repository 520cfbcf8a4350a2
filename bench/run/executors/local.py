"""Execute: runs a Job in a child process and turns a death, a hang or a time limit into an outcome."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from ...core.cell import Cell
from ...core.errors import AttnbenchError
from ...core.record import Machine, Outcome, Record
from ..job import Job

STALL_SECONDS = 900.0
"""A child that says nothing for so long is taken to hang; training says something twice a second."""

ERROR_LINES = 20

# -P: a file beside the person who runs it must not stand in for a module of the same name
WORKER = (sys.executable, "-P", "-m", "attnbench.bench.run.worker")


class WorkerError(AttnbenchError):
    """A mistake or lack that the child met and that the user must cure, such as missing data."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class ChildState:
    """What is known of a child while it runs."""

    recorded: set[str] = field(default_factory=set)
    subject: str = ""
    error: WorkerError | None = None


def execute(
    job: Job,
    *,
    machine: Machine,
    keep: Callable[[Record], None],
    tell: Callable[[dict[str, Any]], None] = lambda event: None,
    timeout: float | None = None,
    stall: float = STALL_SECONDS,
    command: Sequence[str] = WORKER,
) -> None:
    """Every Cell of `job` ends in a Record passed to `keep`, also where its process died.

    A culprit gets its outcome and the others start again without it. `timeout`: seconds that one subject may
    take before another has its turn. Raises WorkerError where the user must act.
    """
    while job.cells:
        started, kills = datetime.now(UTC), _oom_kills()
        watch = ChildState()
        ending = _run_child(command, job, watch, keep, tell, timeout, stall)
        if watch.error:
            raise watch.error
        left = tuple(cell for cell in job.cells if cell.key not in watch.recorded)
        if not left:
            return
        culprit = next((cell for cell in left if cell.key == watch.subject), left[0])
        outcome, reason = classify_exit(ending, _oom_kills() > kills)
        seconds = (datetime.now(UTC) - started).total_seconds()
        keep(failure_record(culprit, job, machine, outcome, reason, started, seconds))
        job = job.keep(left).without(culprit)


@dataclass(frozen=True, slots=True)
class ChildExit:
    code: int
    cause: str
    errors: str


def _run_child(
    command: Sequence[str],
    job: Job,
    watch: ChildState,
    keep: Callable[[Record], None],
    tell: Callable[[dict[str, Any]], None],
    timeout: float | None,
    stall: float,
) -> ChildExit:
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    tail: list[str] = []
    assert child.stdin and child.stdout and child.stderr
    readers = [
        threading.Thread(target=_forward, args=(child.stdout, lines), daemon=True),
        threading.Thread(target=_collect, args=(child.stderr, tail), daemon=True),
    ]
    for reader in readers:
        reader.start()
    line: str | None = ""
    cause, timed, ends = "", "", time.monotonic() + timeout if timeout else None
    try:
        # a child that died before it listened tells why by its exit code
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(job.dumps())
            child.stdin.close()
        while True:
            patience = stall if ends is None else min(stall, max(ends - time.monotonic(), 0.0))
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                over = ends is not None and time.monotonic() >= ends
                cause = f"over the time limit of {timeout:g} s" if over else f"no sign of life for {stall:g} s"
                break
            if line is None:
                break
            _handle(line, watch, keep, tell)
            if timeout and watch.subject != timed:
                timed, ends = watch.subject, time.monotonic() + timeout
    finally:
        _end(child, patience=30.0 if line is None else 0.0)
        for reader in readers:
            reader.join(timeout=5)
        child.stdout.close()
        child.stderr.close()
    return ChildExit(child.returncode, cause, " ".join(" ".join(tail[-ERROR_LINES:]).split())[-500:])


def _handle(
    line: str, watch: ChildState, keep: Callable[[Record], None], tell: Callable[[dict[str, Any]], None]
) -> None:
    if not line.endswith("\n"):
        return  # it died in mid-sentence; its exit code tells why
    event = json.loads(line)
    if event["event"] == "record":
        record = Record.from_json(event["record"])
        watch.recorded.add(record.key)
        keep(record)
    elif event["event"] == "error":
        watch.error = WorkerError(event["message"], event["exit_code"])
    elif event["event"] == "subject":
        watch.subject = event["key"]
    tell(event)


def classify_exit(ending: ChildExit, oom_killed: bool) -> tuple[Outcome, str]:
    if ending.cause:
        return Outcome.TIMEOUT, ending.cause
    if ending.code == -signal.SIGKILL and oom_killed:
        return Outcome.OUT_OF_MEMORY, "killed by the system for want of memory"
    name = signal.Signals(-ending.code).name if ending.code < 0 else f"exit code {ending.code}"
    said = f"; last words: {ending.errors}" if ending.errors else ""
    return Outcome.CRASHED, f"the process ended with {name}{said}"


def failure_record(
    cell: Cell, job: Job, machine: Machine, outcome: Outcome, reason: str, started: datetime, seconds: float
) -> Record:
    return Record(
        cell=cell,
        outcome=outcome,
        reason=reason,
        machine=machine,
        digest=job.digests[cell.key],
        block=job.block,
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )


def _end(child: subprocess.Popen[str], patience: float) -> None:
    """Waits for the child, then ends its whole process group, softly first: it may have children of its own."""
    for seconds, sign in ((patience, signal.SIGTERM), (5.0, signal.SIGKILL)):
        try:
            child.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, sign)
    child.wait()


def _forward(stream: TextIO, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _collect(stream: TextIO, tail: list[str]) -> None:
    for line in stream:
        tail.append(line)
        del tail[:-ERROR_LINES]


def _oom_kills() -> int:
    """How often the system has killed for memory in this control group; 0 where it does not tell."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            for line in Path(path).read_text(encoding="ascii").split("\n"):
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return 0
