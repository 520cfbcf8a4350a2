"""A child process that is given work on its standard input and answers with events.

Third-party code runs in children only: a crash, a hang or an exit then costs one Cell and not the run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO

from .events import Event, decode

ERROR_LINES = 20
"""Lines of the child's error stream that are kept to explain its death."""

# -P: a file beside the person who runs it must not stand in for a module of the same name
WORKER = (sys.executable, "-P", "-m", "attnbench.bench.run.worker")


class Child:
    """A running worker; used in a `with` statement, at whose end its process group is killed.

    `leads_group`: it begins a process group, so that its own children end with it. A child of a worker stays in the
    group of that worker instead, and so ends with it too.
    """

    def __init__(self, command: Sequence[str] = WORKER, *, leads_group: bool = True):
        self._leads_group = leads_group
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=leads_group,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._errors: deque[bytes] = deque(maxlen=ERROR_LINES)
        assert self._process.stdout and self._process.stderr
        # both streams are read all the time: a child that fills a pipe nobody reads waits for ever
        self._readers = [
            threading.Thread(target=self._read_lines, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._errors.extend, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(b"")

    def send(self, text: bytes) -> None:
        """Writes to its standard input; one that died before it listened tells why by its exit code."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def receive(self, seconds: float) -> Event | None:
        """The next event, None where no more will come. Raises TimeoutError after `seconds` without one."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        # a line without an end is of a process that died while it wrote
        return decode(line) if line.endswith(b"\n") else None

    @property
    def exit_code(self) -> int:
        return self._process.wait()

    @property
    def last_errors(self) -> str:
        """The end of its error stream, on one line."""
        return " ".join(b"".join(self._errors).decode(errors="replace").split())[-500:]

    def end(self, patience: float = 0.0) -> None:
        """Waits `patience` seconds for its own end, then ends it and all that it started, softly first."""
        for seconds, sign in ((patience, signal.SIGTERM), (5.0, signal.SIGKILL)):
            try:
                self._process.wait(timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sign) if self._leads_group else self._process.send_signal(sign)
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
