"""A child process: it gets orders as lines and answers with lines, and what it prints explains its death.

Third-party code runs in children only: a crash, a hang or an exit then costs one Cell or one answer, and not the run.
Children are forked from a server that has imported torch; see `server.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from .supervisor import NUMBER, Start
from .wire import MOST_LINE_BYTES, encode_line

ERROR_BYTES = 4096
"""Bytes of the end of the child's error stream that are kept to explain its death."""

REASON_CHARACTERS = 500
"""Characters of them that stand in a reason."""

ENDING_SECONDS = 10.0
"""How long the supervisor may take to end everything that the child has started."""


def wait_for_any(descriptors: Sequence[int], seconds: float | None) -> list[int]:
    """Those that can be read, once there is one, or none after `seconds`."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))]


class ChannelError(Exception):
    """The child wrote on its channel what no honest one does."""


class Child:
    """A running child; used in a `with` statement, at whose end it and all that it started are killed.

    `target`: a module with a function `main(orders, channel)`, or a script; see `supervisor.py`.
    `environment`: variables that are set in it beside those of this process.
    """

    def __init__(self, target: str, environment: Mapping[str, str] | None = None):
        self._lines: deque[bytes] = deque()
        self._begun, self._errors, self._told = bytearray(), b"", b""
        self._channel, its_channel = socket.socketpair()
        self._lifeline, its_lifeline = socket.socketpair()
        reading, its_errors = os.pipe()
        self._error_stream = os.fdopen(reading, "rb", buffering=0)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._ends = self._channel.fileno(), self._lifeline.fileno(), reading
        takers = (self._take_lines, self._take_numbers, self._take_errors)
        # what takes the bytes of each that has not come to its end, by descriptor
        self._open: dict[int, Callable[[bytes], None]] = dict(zip(self._ends, takers, strict=True))
        variables = {**os.environ, **(environment or {})}
        self._server = _server(variables)
        try:
            self._server.fork([its_channel.fileno(), its_lifeline.fileno(), its_errors, folder])
            self.send(encode_line(Start(target, variables)))
        finally:
            its_channel.close()
            its_lifeline.close()
            os.close(its_errors)
            os.close(folder)

    def send(self, line: bytes) -> None:
        """An order; to one that has died nothing, since its exit code tells why."""
        with contextlib.suppress(OSError):
            self._channel.sendall(line)

    def receive(self, seconds: float) -> bytes | None:
        """The next line, without its end; None where no more will come, and half a line is none.

        Raises TimeoutError after `seconds` without one, ChannelError for a line without end.
        """
        ends = time.monotonic() + seconds
        while not self._lines:
            if self._ends[0] not in self._open:
                return None
            self._read(max(ends - time.monotonic(), 0.0))
        return self._lines.popleft()

    @property
    def descriptors(self) -> list[int]:
        """Those of which one is ready when `receive(0)` should be called."""
        return list(self._open)

    @property
    def has_started(self) -> bool:
        """Whether the server has forked it; one that died before has nothing to do with what the child was to do."""
        return bool(self._told)

    @property
    def exit_code(self) -> int:
        """As of subprocess: the negative number of a signal."""
        while self._open:
            self._read(None)
        # a supervisor that was killed has told its own id alone
        return int(NUMBER.unpack(self._told[NUMBER.size :])[0]) if len(self._told) > NUMBER.size else -signal.SIGKILL

    @property
    def last_errors(self) -> str:
        """The end of its error stream, on one line."""
        return " ".join((self._errors or self._server.errors).decode(errors="replace").split())[-REASON_CHARACTERS:]

    @property
    def death(self) -> str:
        """In words how it ended, and the end of its error stream."""
        code = self.exit_code
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        errors = self.last_errors
        return f"the process ended with {how}" + (f"; its error stream ended with: {errors}" if errors else "")

    def end(self, patience: float = 0.0) -> None:
        """Waits `patience` seconds for its own end, then ends it and all that it started."""
        self._wait(patience, self._ends[1])
        with contextlib.suppress(OSError):
            # the supervisor ends everything, and answers with the exit code
            self._lifeline.shutdown(socket.SHUT_WR)
        self._wait(ENDING_SECONDS, self._ends[1])
        if self._ends[1] in self._open and self._told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(NUMBER.unpack(self._told[: NUMBER.size])[0], signal.SIGKILL)
        # its last words are on their way
        self._wait(1.0, self._ends[2])
        self._open.clear()
        for stream in (self._channel, self._lifeline, self._error_stream):
            stream.close()

    def _wait(self, seconds: float, descriptor: int) -> None:
        """Until the end of this stream, or for so long."""
        ends = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError, ChannelError):
            while descriptor in self._open:
                self._read(max(ends - time.monotonic(), 0.0))

    def _read(self, seconds: float | None) -> None:
        """Reads what is there, or comes within `seconds`; raises TimeoutError where nothing does.

        All streams are read whichever is waited for: a child that fills a pipe nobody reads waits for ever.
        """
        ready = wait_for_any(list(self._open), seconds)
        if not ready:
            raise TimeoutError
        for descriptor in ready:
            try:
                chunk = os.read(descriptor, 2**16)
            except OSError:
                chunk = b""
            if chunk:
                self._open[descriptor](chunk)
            else:
                del self._open[descriptor]

    def _take_lines(self, chunk: bytes) -> None:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._lines.append(bytes(self._begun) + line)
            self._begun.clear()
        self._begun += rest
        if len(self._begun) > MOST_LINE_BYTES:
            raise ChannelError(f"it wrote a line of more than {MOST_LINE_BYTES / 2**20:,.0f} MiB on its channel")

    def _take_numbers(self, chunk: bytes) -> None:
        self._told += chunk

    def _take_errors(self, chunk: bytes) -> None:
        self._errors = (self._errors + chunk)[-ERROR_BYTES:]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class _Server:
    """The server of one environment."""

    def __init__(self, environment: Mapping[str, str]):
        self._requests, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        # -P: a file beside the person who runs it must not stand in for a module of the same name
        command = [sys.executable, "-P", "-m", "attnbench.bench.process.server", str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=(theirs.fileno(),),
                env=environment,
                # Ctrl-C at the terminal is for the process that started it
                start_new_session=True,
            )
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> bytes:
        """The end of what it wrote, such as why torch cannot be imported."""
        if self._said.closed:
            return b""
        self._said.seek(max(self._said.seek(0, os.SEEK_END) - ERROR_BYTES, 0))
        return self._said.read()

    def fork(self, descriptors: list[int]) -> None:
        # one that has died closes the channel of the child, whose end is seen there
        with contextlib.suppress(OSError):
            socket.send_fds(self._requests, [b"f"], descriptors)

    def end(self) -> None:
        self._requests.close()
        self._process.kill()
        self._process.wait()
        self._said.close()


READ_AT_USE = ("ATTNBENCH_", "PYTEST_")
"""Beginnings of variables that nothing reads when it is imported."""

_SERVERS: dict[frozenset[tuple[str, str]], _Server] = {}
_STARTING = threading.Lock()


def _server(environment: Mapping[str, str]) -> _Server:
    """The server of this environment, started where none lives: libraries read variables when they are imported."""
    key = frozenset(each for each in environment.items() if not each[0].startswith(READ_AT_USE))
    with _STARTING:
        server = _SERVERS.get(key)
        if server is not None and not server.is_alive:
            server.end()
            server = None
        if server is None:
            server = _SERVERS[key] = _Server(environment)
        return server


@atexit.register
def end_servers() -> None:
    """Ends the servers of this process, as at the end of a command; the next child starts another."""
    while _SERVERS:
        _SERVERS.popitem()[1].end()
