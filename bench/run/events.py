"""Events: what a worker tells its parent while it runs, one JSON object a line; and who listens to a run.

A worker encodes them, the parent decodes them into the same types, and whoever shows a run reads fields instead of
dictionaries. Job files of clusters hold the same lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec

from ..core.decode import Count, Name, Text, brief
from ..core.errors import LOG, StoreError
from ..core.metrics import METRICS
from ..core.record import Machine, Outcome, Record
from ..process.ask import Reporter
from ..process.child import MOST_CHARACTERS, decode_line, encode_line

if TYPE_CHECKING:
    from ..plan.planner import Plan

_LAST_SECOND = 2.0**37  # in the year 6325; calendars end at 9999


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    """`key` in the events below is that of the Cell they are about."""


class JobStarted(_Event, tag="began", frozen=True):
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
    """Steps of a training, or of decoding before a timing.

    The last validation: `validated`, its step, 0 before the first; `loss`: of training; `value` in the unit of
    `metric`.
    """

    key: Name
    done: Count
    of: Count
    metric: Name
    loss: float | None = None
    value: float | None = None
    validation_loss: float | None = None
    validated: Count = 0


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


class SampleBegun(_Event, tag="sample", frozen=True):
    """A sample of a timing begins now. `waits`: one of memory, and the worker waits for a line before it goes on."""

    key: Name
    waits: bool = False


class SampleEnded(_Event, tag="sampled", frozen=True):
    """It has ended now; `seconds` and `cpu_seconds` of the whole sample, as the worker's own clock has them."""

    key: Name
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    waits: bool = False


class RoundsEnded(_Event, tag="rounds", frozen=True):
    """No more samples of this timing come."""


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


_Plain = (
    JobStarted | CellStarted | TrainingProgress | Stage | Alive | Warned | Failed | Restarted | LengthTried |
    SampleBegun | SampleEnded | RoundsEnded
)  # fmt: skip
"""The events whose wire form is their own; a Record has another."""

Event = _Plain | CellFinished
OnEvent = Callable[[Event], None]

_Line = _Plain | _RecordLine


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


class RunListener(Reporter):
    """Follows a run; every method returns at once.

    `estimates`: whether it shows how long the run may take; `later`: the seconds that runs behind this one may take.
    """

    estimates: bool = False
    later: float = 0.0

    def begin(self, plan: Plan, preset: str, machine: Machine) -> None:
        """The plan is made and its first cell starts; again where the trials of learning rates ask for others."""

    def on_event(self, event: Event) -> None:
        """An event, such as the loss after some steps, or a cell whose Record is stored."""


class LoggingListener(RunListener):
    """Progress as log messages of the logger `attnbench`: what a person must know as warnings, the rest as info."""

    def notice(self, message: str) -> None:
        LOG.warning(message)

    def progress(self, what: str, done: int, total: int) -> None:
        LOG.debug("%s: %d of %d", what, done, total)

    def begin(self, plan: Plan, preset: str, machine: Machine) -> None:
        LOG.info("preset %s, %s: %d of %d cells to run", preset, machine.id, len(plan.left), len(plan.steps))

    def on_event(self, event: Event) -> None:
        match event:
            case Warned(message):
                LOG.warning(message)
            case CellFinished(record):
                level = logging.INFO if record.outcome is Outcome.OK else logging.WARNING
                LOG.log(level, "%s (%.0f s)", ended(record, str(record.cell)), record.seconds)
            case _:
                LOG.debug("%s", event)


def ended(record: Record, name: str) -> str:
    """The outcome of a Cell called `name`, with the test result of a training or the reason why there is none."""
    tested = next((m for m in record.measurements if METRICS[m.name].points and m.where.get("split") == "test"), None)
    found = f", test {reached(tested.name, tested.value)}" if tested else ""
    return f"{record.outcome}  {name}{found}{f': {record.reason}' if record.reason else ''}"


def reached(quantity: str, value: float) -> str:
    """The metric that a task is ranked by, in words.

    >>> reached("accuracy", 0.6174), reached("bits_per_character", 2.0514)
    ('accuracy 61.7%', 'bits per character 2.051')
    """
    shown = f"{value:.1%}" if METRICS[quantity].unit == "fraction" else f"{value:.3f}"
    return f"{quantity.replace('_', ' ')} {shown}"
