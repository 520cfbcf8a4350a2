"""Arrivals: the order in which Records came into a folder, which no sender can state.

Within one file of `records/` the order of the lines is the order of arrival. Between files `arrivals.txt` decides: one
line for each time that Records of others were merged, with the number of lines that each file had then, as
`MACHINE=LINES`. Lines beyond the log came after all that is logged. The start that a Record states decides only among
Records that arrived together, which is all of them where there is no log.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from ..core.bounds import MOST_LINE_BYTES
from ..core.decode import brief
from ..core.files import read_regular
from ..core.record import Record
from .record_files import BadLine, RecordFile, append_line, spelt

LOG = "arrivals.txt"

_ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,120})=([0-9]{1,9})")


class ArrivalLog(NamedTuple):
    """The log of a folder: for each arrival, how many lines the files had by then, by the names of the files."""

    arrivals: tuple[dict[str, int], ...] = ()
    bad_lines: tuple[BadLine, ...] = ()

    @property
    def lines(self) -> dict[str, int]:
        """How many lines of each file are in an arrival."""
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
