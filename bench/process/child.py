"""A child process that is given lines on its standard input and answers with lines on a channel of its own.

Third-party code runs in children only: a crash, a hang or an exit then costs one Cell or one answer, and not the run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

ERROR_BYTES = 4096
"""Bytes of the end of the child's error stream that are kept to explain its death."""

REASON_CHARACTERS = 500
"""Characters of them that stand in a reason."""

CHANNEL_BYTES, CHANNEL_BYTES_PER_SECOND = 64 * 2**20, 64 * 2**10
"""What a child may say in all: a training of a week says a fifth of it, a child that floods its channel is stopped."""

ENDING_SECONDS = 10.0
"""How long the supervisor may take to end everything that the child has started."""


class ChannelError(Exception):
    """The child wrote more on its channel than any honest one does."""


class Cancelled(Exception):
    """Another thread has asked to end the child."""


class Child:
    """A running child; used in a `with` statement, at whose end it and all that it started are killed.

    `target`: a module with a function `main(orders, channel)`, or a script; see `supervisor.py`.
    `environment`: variables that are set in it beside those of this process.
    """

    def __init__(self, target: str, environment: Mapping[str, str] | None = None):
        reading, channel = os.pipe()
        lifeline, self._lifeline = os.pipe()
        # -P: a file beside the person who runs it must not stand in for a module of the same name
        command = [sys.executable, "-P", "-m", "attnbench.bench.process.supervisor", str(channel), str(lifeline)]
        try:
            self._process = subprocess.Popen(
                [*command, target],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(channel, lifeline),
                env={**os.environ, **(environment or {})},
                # Ctrl-C at the terminal is for the process that started it
                start_new_session=True,
            )
        finally:
            os.close(channel)
            os.close(lifeline)
        self._started = time.monotonic()
        self._lines: queue.Queue[bytes | ChannelError | Cancelled | None] = queue.Queue()
        self._errors = b""
        assert self._process.stderr
        # both are read all the time: a child that fills a pipe nobody reads waits for ever
        self._readers = [
            threading.Thread(target=self._read_lines, args=(reading,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr.fileno(),), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self, channel: int) -> None:
        said, begun = 0, bytearray()
        with os.fdopen(channel, "rb", buffering=0) as stream:
            while chunk := stream.read(2**16):
                said += len(chunk)
                allowed = CHANNEL_BYTES + CHANNEL_BYTES_PER_SECOND * (time.monotonic() - self._started)
                if said > allowed:
                    self._lines.put(ChannelError(f"it wrote {said / 2**20:,.0f} MiB on its channel"))
                    return
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    self._lines.put(bytes(begun) + line)
                    begun.clear()
                begun += rest
        # a line without an end is of a process that died while it wrote
        self._lines.put(None)

    def _read_errors(self, stream: int) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(stream, 2**16):
                self._errors = (self._errors + chunk)[-ERROR_BYTES:]

    def send(self, line: bytes) -> None:
        """Writes to its standard input; one that died before it listened tells why by its exit code."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def receive(self, seconds: float) -> bytes | None:
        """The next line, without its end; None where no more will come.

        Raises TimeoutError after `seconds` without one, ChannelError where the child floods its channel, and Cancelled
        after `cancel`.
        """
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(line, ChannelError | Cancelled):
            raise line
        return line

    def cancel(self) -> None:
        """Wakes the thread that waits in `receive`, which raises Cancelled; called by another thread."""
        self._lines.put(Cancelled())

    @property
    def exit_code(self) -> int:
        """As of subprocess: the negative number of a signal."""
        return self._process.wait()

    @property
    def last_errors(self) -> str:
        """The end of its error stream, on one line."""
        return " ".join(self._errors.decode(errors="replace").split())[-REASON_CHARACTERS:]

    @property
    def death(self) -> str:
        """In words how it ended, and the end of its error stream."""
        code = self.exit_code
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        errors = self.last_errors
        return f"the process ended with {how}" + (f"; its error stream ended with: {errors}" if errors else "")

    def end(self, patience: float = 0.0) -> None:
        """Waits `patience` seconds for its own end, then ends it and all that it started."""
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=patience)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._process.wait(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        for stream in (self._process.stdin, self._process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
