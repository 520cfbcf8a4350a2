"""Events: what a worker tells its parent while it runs, one JSON object a line.

A worker encodes them, the parent decodes them into the same types, and whoever shows a run reads fields instead of
dictionaries. Job files of clusters hold the same lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from ..core.bounds import Count, Name, Text
from ..core.decode import brief
from ..core.errors import StoreError
from ..core.record import Machine, Record
from ..process.wire import MOST_CHARACTERS, decode_line, encode_line

_LAST_SECOND = 2.0**37  # in the year 6325; calendars end at 9999


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    """`key` in the events below is that of the Cell they are about."""


class Began(_Event, tag="began", frozen=True):
    """A worker is ready to work on its job. `node`, `device`: as its Records name them; `time`: of the epoch."""

    machine: Machine
    node: Name = ""
    device: Name = ""
    time: Annotated[float, msgspec.Meta(ge=0, le=_LAST_SECOND)] = 0.0


class CellStarted(_Event, tag="subject", frozen=True):
    """Work on a Cell begins; if the process dies now, this Cell is the reason."""

    key: Name


class CellFinished(_Event, tag="finished", frozen=True):
    """A Cell has ended, one way or another. `line`: its Record as the child wrote it and as the store appends it."""

    record: Record
    line: bytes = b""

    def __post_init__(self) -> None:
        """Raises StoreError for a Record that no file would take."""
        if not self.line:
            msgspec.structs.force_setattr(self, "line", self.record.to_line())


class TrainingProgress(_Event, tag="progress", frozen=True):
    """Steps made of a training. `loss` and `value`, in the unit of `metric`, are of the last validation, if any."""

    key: Name
    done: Count
    of: Count
    metric: Name
    loss: float | None = None
    value: float | None = None


class Stage(_Event, tag="stage", frozen=True):
    """A stage after the training of a Cell has begun: `test` or `sparsity`."""

    key: Name
    stage: Name


class Alive(_Event, tag="alive", frozen=True):
    """A sign of life in a long evaluation, so that it is not taken to hang."""

    key: Name


class Warned(_Event, tag="warning", frozen=True):
    """A sentence for the person who started the run."""

    message: Text


class Failed(_Event, tag="error", frozen=True):
    """A mistake or a lack that the person must cure, such as missing data; the worker ends with `exit_code`."""

    message: Text
    exit_code: int


class Restarted(_Event, tag="restart", frozen=True):
    """The worker ends since a Cell, whose Record it has sent, changed its process; the others need a new one."""


class LengthTried(_Event, tag="length", frozen=True):
    """One length of the search for the longest: its peak, None where memory was refused, or why it cannot be tried.

    `crashed`: the error is one of the code, and not a refusal.
    """

    peak_bytes: float | None = None
    error: Text = ""
    crashed: bool = False


class _RecordLine(_Event, tag="record", frozen=True):
    """The wire form of CellFinished: a Record as the store writes it, where numbers that are not finite are text."""

    record: msgspec.Raw


Event = (
    Began | CellStarted | CellFinished | TrainingProgress | Stage | Alive | Warned | Failed | Restarted | LengthTried
)
OnEvent = Callable[[Event], None]

_Line = Began | CellStarted | _RecordLine | TrainingProgress | Stage | Alive | Warned | Failed | Restarted | LengthTried


def encode(event: Event) -> bytes:
    """One line, its end included; messages are cut."""
    if isinstance(event, CellFinished):
        return encode_line(_RecordLine(msgspec.Raw(event.line[:-1])))
    if isinstance(event, Warned | Failed):
        event = msgspec.structs.replace(event, message=brief(event.message, MOST_CHARACTERS))
    if isinstance(event, LengthTried):
        event = msgspec.structs.replace(event, error=brief(event.error, MOST_CHARACTERS))
    return encode_line(event)


def decode(line: bytes) -> Event:
    """The event of a line; raises StoreError for anything else, such as what a plugin printed there."""
    try:
        event: _Line = decode_line(line, _Line)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"it is no event: {brief(error)}") from None
    if not isinstance(event, _RecordLine):
        return event
    text = bytes(event.record)
    return CellFinished(Record.from_line(text), text + b"\n")
