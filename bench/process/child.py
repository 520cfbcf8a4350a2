"""A child process: it gets orders as lines and answers with lines, and what it prints explains its death.

Third-party code runs in children only: a crash, a hang or an exit then costs one Cell or one answer, and not the run.
Children are forked from a server that has imported torch; see `server.py`. A line is one JSON object, whichever way it
goes; a packed one says how many bytes of msgpack follow it, since tensors are a third longer in JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import msgspec

from ..core.decode import decode_hook, encode_hook, without_surrogates
from .servers import ERROR_BYTES, environment_of_child, fork_child

MOST_LINE_BYTES = 64 * 2**20
"""A child that writes a longer line writes nonsense."""

PACKED = b"\xff"
"""The first byte of a line that counts the bytes behind it; no JSON begins with it."""

MOST_CHARACTERS = 2_000
"""Longest message to a person, in characters; compilers and plugins can print millions."""

_REASON_CHARACTERS = 500
"""Characters of them that stand in a reason."""

_ENDING_SECONDS = 10.0
"""The time that the supervisor may take to end everything that the child has started."""

NUMBER = struct.Struct("i")
"""The form of a number on a supervisor's lifeline: first its process id, at the end the exit code of the child."""


class Start(msgspec.Struct, frozen=True):
    """The first order to a child: what it runs, and its variables."""

    target: str
    environment: dict[str, str]


class _Order(msgspec.Struct, frozen=True):
    """A dataclass by the module and the name of its class."""

    module: str
    name: str
    fields: msgspec.Raw


def _encode(message: Any, *, packed: bool) -> bytes:
    """JSON or msgpack; Specs and paths become text."""
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    try:
        return encode(message, enc_hook=encode_hook)
    except UnicodeEncodeError:
        # a message may name a file whose name is no Unicode; msgpack has bytes of its own
        plain = msgspec.to_builtins(message, enc_hook=encode_hook, builtin_types=(bytes,) if packed else ())
        return encode(without_surrogates(plain))


def encode_line(message: Any, *, packed: bool = False) -> bytes:
    """One line, its end included; packed: msgpack behind a line with its size."""
    found = _encode(message, packed=packed)
    return b"%b%d\n%b" % (PACKED, len(found), found) if packed else found + b"\n"


def decode_line(line: bytes, kind: Any, *, packed: bool = False) -> Any:
    """Raises msgspec.DecodeError, a ValueError or RecursionError for a line that is no `kind`."""
    if packed and not line.startswith(PACKED):
        raise ValueError("Expected a packed line")
    return _decode(memoryview(line)[len(PACKED) :] if packed else line, kind, packed=packed)


def _decode(text: Any, kind: Any, *, packed: bool) -> Any:
    return (msgspec.msgpack.decode if packed else msgspec.json.decode)(text, type=kind, dec_hook=decode_hook)


def encode_order(order: Any, *, packed: bool = False) -> bytes:
    """The line that orders a child's work, of a frozen dataclass at the top level of a module of attnbench."""
    kind, fields = type(order), msgspec.Raw(_encode(order, packed=packed))
    return encode_line(_Order(kind.__module__, kind.__qualname__, fields), packed=packed)


def decode_order(line: bytes, *, packed: bool = False) -> Any:
    """In the child, whose parent sent the name of the class."""
    found = decode_line(line, _Order, packed=packed)
    return _decode(found.fields, getattr(importlib.import_module(found.module), found.name), packed=packed)


def read_lines(orders: IO[bytes]) -> Iterator[bytes]:
    """In the child: the lines that arrive, each packed one with what it counts."""
    for line in orders:
        yield PACKED + orders.read(int(line[1:])) if line.startswith(PACKED) else line


def wait_for_any(descriptors: Iterable[int], seconds: float | None) -> list[int]:
    """The descriptors that can be read, once there is one; empty after `seconds` without one."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))]


class ChannelError(Exception):
    """The child wrote on its channel what no honest one does."""


class Child(AbstractContextManager["Child"]):
    """A running child; used in a `with` statement, at whose end it and all that it started are killed.

    `target`: a module with a function `main(orders, channel)`, or a script; see `server.py`.
    `environment`: variables that are set in it beside those of this process.
    """

    open: set[int]
    """Descriptors of its streams that have not ended; where one of them is ready, `receive(0)` should be called."""

    has_started = False
    """True once the server has forked it; a death before that has nothing to do with the child's work."""

    _pid = _resident = _written = 0

    def __init__(self, target: str, environment: Mapping[str, str] | None = None):
        self._lines: deque[bytes] = deque()
        self._begun, self._looked = bytearray(), 0
        self._errors, self._numbers = b"", b""
        self._channel, its_channel = socket.socketpair()
        self._lifeline, its_lifeline = socket.socketpair()
        reading, its_errors = os.pipe()
        self._error_stream = os.fdopen(reading, "rb", buffering=0)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._ends = self._channel.fileno(), self._lifeline.fileno(), reading
        self.open = {*self._ends}
        variables = environment_of_child(environment or {})
        try:
            self._server = fork_child(variables, [its_channel.fileno(), its_lifeline.fileno(), its_errors, folder])
            self.send(encode_line(Start(target, variables)))
        finally:
            its_channel.close()
            its_lifeline.close()
            os.close(its_errors)
            os.close(folder)

    def send(self, line: bytes, seconds: float | None = None) -> None:
        """An order; to one that has died, or reads none for `seconds`, not all: its end, or its silence, tells why."""
        with contextlib.suppress(OSError):
            self._channel.settimeout(seconds)
            self._channel.sendall(line)
        with contextlib.suppress(OSError):
            self._channel.settimeout(None)

    def receive(self, seconds: float) -> bytes | None:
        """The next line, without its end; None where no more will come, and half a line is none.

        Raises TimeoutError after `seconds` without one, ChannelError for a line without end.
        """
        ends = time.monotonic() + seconds
        while not self._lines:
            if self._ends[0] not in self.open:
                return None
            if self._ends[1] in self.open:
                self._read(max(ends - time.monotonic(), 0.0))
                continue
            # its supervisor has ended: whoever still holds its channel, such as a daemon, is not asked
            try:
                self._read(0.0)
            except TimeoutError:
                return None
        return self._lines.popleft()

    @property
    def exit_code(self) -> int:
        """The exit code as subprocess has it: the negative number of a signal."""
        while self._ends[1] in self.open:
            self._read(None)
        # its last words, but for what a daemon holds open
        self._wait(1.0, self._ends[2])
        code = self._numbers[NUMBER.size :]
        # a supervisor that was killed has sent its own id alone
        return int(NUMBER.unpack(code)[0]) if code else -signal.SIGKILL

    @property
    def last_errors(self) -> str:
        """The end of its error stream, on one line; of a traceback the error, and in brackets where it was raised."""
        lines = (self._errors or self._server.errors).decode(errors="replace").split("\n")
        lines = [line for line in lines if line.strip(" ^~\r")]
        frames = [at for at, line in enumerate(lines) if line.startswith('  File "')]
        if frames and (error := [line for line in lines[frames[-1] + 1 :] if not line.startswith(" ")]):
            lines = [*error, f"({lines[frames[-1]].strip()})"]
        return " ".join(" ".join(lines).split())[-_REASON_CHARACTERS:]

    @property
    def death(self) -> str:
        """The end of the process in words, and the last lines of its error stream."""
        code = self.exit_code
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        errors = self.last_errors
        return f"the process ended with {how}" + (f"; its error stream ended with: {errors}" if errors else "")

    def processor_seconds(self) -> float:
        """Processor time of the process so far, of all its threads, by the kernel; not a number where it is unknown."""
        try:
            # the kernel's number of the clock of another process (Linux, posix-timers.h)
            return time.clock_gettime(~self._process_id() << 3 | 2)
        except (OSError, ValueError, IndexError, struct.error):
            return math.nan

    def touched_bytes(self, *, begins: bool = False) -> tuple[float, float]:
        """Memory that the process has touched since the call that `begins`, by the kernel, and what it has written.

        Of memory, whoever keeps it, an allocator, a file or a mapping, and what was given back too, at its peak; code
        that it runs is none. Written to files, in no page of its own. Not numbers where they are unknown.
        """
        try:
            folder = Path(f"/proc/{self._process_id()}")
            if begins:
                # forget which pages were touched, and the peak (Linux, filesystems/proc.rst)
                for what in ("1", "5"):
                    (folder / "clear_refs").write_text(what, encoding="ascii")
            status = dict(re.findall(r"(Vm\w+):\s+(\d+)", (folder / "status").read_text(encoding="utf-8")))
            [written] = re.findall(r"wchar: (\d+)", (folder / "io").read_text(encoding="ascii"))
            self._written = int(written) if begins else self._written
            maps = (folder / "smaps").read_text(encoding="utf-8", errors="replace")
            # of what may be written: libraries are code, and others touch their pages too
            touched = sum(map(int, re.findall(r"^\w+-\w+ .w(?s:.*?)^Referenced: +(\d+)", maps, re.MULTILINE)))
            self._resident = int(status["VmRSS"]) if begins else max(self._resident, int(status["VmRSS"]))
            # not what an allocator had before, and has given back since
            touched += max(int(status["VmHWM"]) - self._resident, 0)
            return 1024.0 * touched, float(int(written) - self._written)
        except (OSError, ValueError, IndexError, KeyError, struct.error):
            return math.nan, math.nan

    def _process_id(self) -> int:
        if not self._pid:
            supervisor = NUMBER.unpack(self._numbers[: NUMBER.size])[0]
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii")
            self._pid = int(children.split()[0])
        return self._pid

    def stop(self) -> None:
        """Asks for its end from another thread than that which reads from it, and which then hears of the end."""
        with contextlib.suppress(OSError):
            # the supervisor ends everything, and answers with the exit code
            self._lifeline.shutdown(socket.SHUT_WR)

    def end(self, patience: float = 0.0) -> None:
        """Waits `patience` seconds for its own end, then ends it and all that it started."""
        self._wait(patience, self._ends[1])
        self.stop()
        # a server that still imports forks it later, and it ends at once
        if self.has_started:
            self._wait(_ENDING_SECONDS, self._ends[1])
            if self._ends[1] in self.open:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(NUMBER.unpack(self._numbers[: NUMBER.size])[0], signal.SIGKILL)
            # its last words are on their way
            self._wait(1.0, self._ends[2])
        self.open.clear()
        for stream in (self._channel, self._lifeline, self._error_stream):
            stream.close()

    def _wait(self, seconds: float, descriptor: int) -> None:
        """Wait until the end of this stream, or for so long."""
        ends = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while descriptor in self.open:
                # one that writes nonsense for ever is no longer read, and its end is waited for all the same
                with contextlib.suppress(ChannelError):
                    self._read(max(ends - time.monotonic(), 0.0))

    def _read(self, seconds: float | None) -> None:
        """Reads what is there, or comes within `seconds`; raises TimeoutError where nothing does.

        All streams are read whichever is waited for: a child that fills a pipe nobody reads waits for ever.
        """
        ready = wait_for_any(self.open, seconds)
        if not ready:
            raise TimeoutError
        for descriptor in ready:
            try:
                chunk = os.read(descriptor, 2**20)
            except OSError:
                chunk = b""
            if not chunk:
                self.open.discard(descriptor)
            elif descriptor == self._ends[1]:
                self._numbers += chunk
                self.has_started = True
            elif descriptor == self._ends[2]:
                self._errors = (self._errors + chunk)[-ERROR_BYTES:]
            else:
                self._begun += chunk
                try:
                    self._take_lines()
                except ChannelError:
                    self.open.discard(descriptor)
                    self._begun.clear()
                    raise

    def _take_lines(self) -> None:
        """Move what is whole of what has arrived to the lines; raises ChannelError."""
        begun = self._begun
        while (end := begun.find(b"\n", self._looked)) >= 0:
            if not begun.startswith(PACKED):
                self._lines.append(bytes(begun[:end]))
                del begun[: end + 1]
                self._looked = 0
                continue
            size = int(begun[1:end]) if begun[1:end].isdigit() and end < 12 else MOST_LINE_BYTES
            last = end + 1 + size
            if last > MOST_LINE_BYTES:
                raise ChannelError("it wrote a packed line of a size that no honest child writes")
            if len(begun) < last:
                # found again when more has arrived
                self._looked = end
                return
            self._lines.append(PACKED + begun[end + 1 : last])
            del begun[:last]
            self._looked = 0
        self._looked = len(begun)
        if len(begun) > MOST_LINE_BYTES:
            raise ChannelError(f"it wrote a line of more than {MOST_LINE_BYTES / 2**20:,.0f} MiB on its channel")

    def __exit__(self, *_: object) -> None:
        self.end()
