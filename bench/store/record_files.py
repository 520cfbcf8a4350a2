"""Record files: the lines of `records/*.jsonl`, each a Record, or named with the reason why it cannot be read.

Whoever reads writes nothing and follows no link, since the folder may come from a stranger. Appending is the one way to
write, and repairs a line that an interruption tore.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..core.decode import MOST_LINE_BYTES, brief
from ..core.errors import StoreError
from ..core.files import open_folder, open_regular, open_to_append, read_regular
from ..core.record import Record

FOLDER = "records"

MOST_FILE_BYTES = 2**30
MOST_LINES = 1_000_000

PATIENCE_SECONDS = 1.0
"""The seconds that a reader waits for the writer of an incomplete last line, which takes milliseconds."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """The fault of a line of a file; of the file as a whole where `number` is 0."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """The records of one file, with the numbers of their lines, as it was at `stamp` (its size and time).

    `lines`: how many lines have an end; `ends`: whether the last one has.
    """

    name: str
    stamp: tuple[int, int] = (0, 0)
    records: tuple[Record, ...] = ()
    numbers: tuple[int, ...] = ()
    bad_lines: tuple[BadLine, ...] = ()
    lines: int = 0
    ends: bool = True

    @cached_property
    def by_cell(self) -> dict[tuple[str, str], list[Record]]:
        """The records by key and digest."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            found.setdefault((record.key, record.digest), []).append(record)
        return found


@contextmanager
def opened(root: Path, name: str) -> Iterator[int]:
    """A descriptor of the folder `root/name`; `root` may be a link, the folder in it may not. Raises OSError."""
    outer = open_folder(root)
    try:
        inner = open_folder(name, folder=outer, follow=False)
    finally:
        os.close(outer)
    try:
        yield inner
    finally:
        os.close(inner)


def names_in(folder: int) -> list[str]:
    """The names of record files, sorted; of links and pipes too, which `read_file` then names."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".jsonl") and not name.startswith("."))


def other_names(folder: int, is_given: Callable[[str], bool]) -> list[str]:
    """The names in a folder that are not given ones, sorted, as text that can be printed."""
    return [spelt(name) for name in sorted(os.listdir(folder)) if not is_given(name)]


def is_given_name(name: str) -> bool:
    """True if a file of this name is of attnbench, or one that a kill has left."""
    return re.fullmatch(r"arrivals\.txt(\.torn)?|[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.jsonl(\.torn)?", name) is not None


def read_file(folder: int, name: str, known: RecordFile | None = None) -> RecordFile:
    """Read every line of a file; a missing file has no lines. Returns `known` where the file has not changed since."""
    try:
        with open_regular(name, folder=folder, follow=False) as file:
            status = os.fstat(file.fileno())
            if known is not None and known.stamp == (status.st_size, status.st_mtime_ns):
                return known
            found = _parse(name, file)
            # a line that was just being written is read in two pieces, the second of which may not be the last line
            if any(bad.reason == _INCOMPLETE for bad in found.bad_lines):
                with _no_writer(file):
                    file.seek(0)
                    found = _parse(name, file)
            return found
    except FileNotFoundError:
        return RecordFile(name=name)
    except OSError as error:
        return RecordFile(name=name, bad_lines=(BadLine(0, f"cannot be read: {error.strerror or error}"),))


def append_line(folder: int, name: str, line: bytes) -> str:
    """Add a whole line, and return once it is on disk; before that, sets a torn one aside in `NAME.torn`.

    Returns a sentence about the torn line, empty where there was none. Raises OSError; the file is then as it was.
    """
    descriptor = open_to_append(name, folder=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size, notice = os.lseek(descriptor, 0, os.SEEK_END), ""
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            notice = _set_torn_line_aside(folder, name, descriptor)
            size = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            _write_whole(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if size == 0:
        os.fsync(folder)
    return notice


_INCOMPLETE = "the last line is incomplete and was not read"


def _parse(name: str, file: BinaryIO) -> RecordFile:
    status = os.fstat(file.fileno())
    stamp = status.st_size, status.st_mtime_ns
    records, numbers, bad, number, lines, ends = [], [], [], 0, 0, True
    while line := file.readline(MOST_LINE_BYTES + 2):
        number += 1
        if len(line) > MOST_LINE_BYTES + 1:
            # as much as shows that it is too long; the rest is passed over
            while (rest := file.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                if file.tell() > MOST_FILE_BYTES:
                    break
        if number > MOST_LINES or file.tell() > MOST_FILE_BYTES:
            most = f"{MOST_LINES:,} lines and {MOST_FILE_BYTES:,} bytes"
            bad.append(BadLine(0, f"it is longer than {most}; lines from {number:,} on were not read"))
            break
        ends = line.endswith(b"\n")
        lines += ends
        try:
            if line.strip():
                records.append(Record.from_line(line))
                numbers.append(number)
        except StoreError as error:
            is_torn = not line.endswith(b"\n") and len(line) <= MOST_LINE_BYTES and "it is not JSON" in str(error)
            bad.append(BadLine(number, _INCOMPLETE if is_torn else str(error)))
    return RecordFile(
        name=name, stamp=stamp, records=tuple(records), numbers=tuple(numbers), bad_lines=tuple(bad), lines=lines,
        ends=ends,
    )  # fmt: skip


@contextmanager
def _no_writer(file: BinaryIO) -> Iterator[None]:
    """Keep others from appending meanwhile; wait only a little for a writer that does not release the lock."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            break
    try:
        yield
    finally:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _set_torn_line_aside(folder: int, name: str, descriptor: int) -> str:
    end = start = os.lseek(descriptor, 0, os.SEEK_END)
    tail = b""
    while start > 0 and b"\n" not in tail:
        start = max(0, start - max(65536, len(tail)))
        tail = os.pread(descriptor, end - start, start)
    tail = tail.rpartition(b"\n")[2]
    with suppress(StoreError):
        Record.from_line(tail)
        # the line is whole, and only its end was lost
        _write_whole(descriptor, b"\n")
        return ""
    torn = open_to_append(name + ".torn", folder=folder)
    try:
        _write_whole(torn, tail + b"\n")
    finally:
        os.close(torn)
    os.ftruncate(descriptor, end - len(tail))
    return f"{name}: the last line was torn by an interruption; it was set aside in {name}.torn"


def _write_whole(descriptor: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    os.fsync(descriptor)


def spelt(name: str) -> str:
    """A file's name as text that can be printed, also where its bytes are no Unicode.

    >>> spelt("box.jsonl")
    'box.jsonl'
    """
    return brief(os.fsencode(name).decode(errors="backslashreplace"))


LOG = "arrivals.txt"

_ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,120})=([0-9]{1,9})")


class ArrivalLog(NamedTuple):
    """The log of a folder: for each arrival, how many lines the files had by then, by the names of the files."""

    arrivals: tuple[dict[str, int], ...] = ()
    bad_lines: tuple[BadLine, ...] = ()

    @property
    def lines(self) -> dict[str, int]:
        """The number of lines of each file that are in an arrival."""
        found: dict[str, int] = {}
        for arrival in self.arrivals:
            for name, lines in arrival.items():
                found[name] = max(lines, found.get(name, 0))
        return found


class ArrivedRecord(NamedTuple):
    """A Record with its place.

    `arrival`: the number of its arrival; one more than the last for a Record that the log does not have. `since`: the
    latest start that its line or a line before it states, so that an earlier one moves no line up.
    """

    arrival: int
    since: str
    file: str
    number: int
    record: Record

    @property
    def place(self) -> str:
        return f"{spelt(self.file)}:{self.number}"


def in_order_of_arrival(files: Iterable[RecordFile], log: ArrivalLog) -> list[ArrivedRecord]:
    """All Records of the files, the first to come first."""
    # by file, ascending counts of lines, and the arrival that brought each
    steps: dict[str, tuple[list[int], list[int]]] = {}
    for arrival, counts in enumerate(log.arrivals):
        for name, lines in counts.items():
            ends, at = steps.setdefault(name, ([0], [0]))
            # a line that has arrived does not arrive again
            if lines > ends[-1]:
                ends.append(lines)
                at.append(arrival)
    found = []
    for file in files:
        ends, at = steps.get(file.name, ([], []))
        since = ""
        for number, record in zip(file.numbers, file.records, strict=True):
            since = max(since, record.started)
            step = bisect_left(ends, number)
            arrival = at[step] if step < len(at) else len(log.arrivals)
            found.append(ArrivedRecord(arrival, since, file.name, number, record))
    return sorted(found, key=lambda each: each[:4])


def read_log(folder: int) -> ArrivalLog:
    """The log in the folder of Records, empty where there is none."""
    try:
        text = read_regular(LOG, MOST_LINE_BYTES, folder=folder, follow=False).decode(errors="replace")
    except FileNotFoundError:
        return ArrivalLog()
    except OSError as error:
        return ArrivalLog(bad_lines=(BadLine(0, f"cannot be read: {error.strerror or error}"),))
    arrivals, bad = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        entries = [_ENTRY.fullmatch(part) for part in line.split(" ")]
        if not all(entries):
            bad.append(BadLine(number, f"expected parts such as MACHINE=12, got {brief(repr(line))}"))
        arrivals.append({f"{entry[1]}.jsonl": int(entry[2]) for entry in entries if entry})
    return ArrivalLog(tuple(arrivals), tuple(bad))


def log_arrival(folder: int, files: Iterable[RecordFile]) -> None:
    """Adds to the log that all lines of the files which are in no arrival yet have arrived now. Raises OSError."""
    logged = read_log(folder).lines
    fresh = [
        f"{file.name.removesuffix('.jsonl')}={file.lines}" for file in files if file.lines > logged.get(file.name, 0)
    ]
    if fresh:
        append_line(folder, LOG, " ".join(fresh).encode() + b"\n")
