"""Events: what a worker tells its parent while it runs, one JSON object a line.

This file is the only place that knows their wire form. A worker encodes them, the parent decodes them into the same
types, and whoever shows a run reads fields instead of dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..core.record import Record


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    """`key` in the events below is that of the Cell they are about."""


class CellStarted(_Event, tag="subject", frozen=True):
    """Work on a Cell begins; if the process dies now, this Cell is the reason."""

    key: str


class CellFinished(_Event, tag="finished", frozen=True):
    """A Cell has ended, one way or another."""

    record: Record


class TrainingProgress(_Event, tag="progress", frozen=True):
    """Steps made of a training. `loss` and `value`, in the unit of `metric`, are of the last validation, if any."""

    key: str
    done: int
    of: int
    metric: str
    loss: float | None = None
    value: float | None = None


class Stage(_Event, tag="stage", frozen=True):
    """A stage after the training of a Cell has begun: `test` or `sparsity`."""

    key: str
    stage: str


class Alive(_Event, tag="alive", frozen=True):
    """A sign of life in a long evaluation, so that it is not taken to hang."""

    key: str


class Warned(_Event, tag="warning", frozen=True):
    """A sentence for the person who started the run."""

    message: str


class Failed(_Event, tag="error", frozen=True):
    """A mistake or a lack that the person must cure, such as missing data; the worker ends with `exit_code`."""

    message: str
    exit_code: int


class LengthTried(_Event, tag="length", frozen=True):
    """One length of the search for the longest: its peak, None where memory was refused, or why it cannot be tried."""

    peak_bytes: float | None = None
    error: str = ""


class _RecordLine(_Event, tag="record", frozen=True):
    """The wire form of CellFinished: a Record as the store writes it, where numbers that are not finite are text."""

    record: dict[str, Any]


Event = CellStarted | CellFinished | TrainingProgress | Stage | Alive | Warned | Failed | LengthTried
OnEvent = Callable[[Event], None]

_Line = CellStarted | _RecordLine | TrainingProgress | Stage | Alive | Warned | Failed | LengthTried
_DECODER: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def encode(event: Event) -> bytes:
    """One line, its end included."""
    line = _RecordLine(event.record.to_json()) if isinstance(event, CellFinished) else event
    return msgspec.json.encode(line) + b"\n"


def decode(line: bytes) -> Event:
    """The event of a line. Raises msgspec.DecodeError for anything else, and StoreError for a Record that is none."""
    event = _DECODER.decode(line)
    return CellFinished(Record.from_json(event.record)) if isinstance(event, _RecordLine) else event
