"""Run a selection from its plan to its Records, and tell a listener how it goes, such as the live view."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..core.metrics import METRICS
from ..core.record import Machine, Outcome, Record
from ..plan.planner import Plan
from ..store.records import Records
from .events import CellFinished, Event, Warned

if TYPE_CHECKING:
    from .runner import Runner

LOG = logging.getLogger("attnbench")


class RunListener(Protocol):
    """Listens to a run; every method returns at once."""

    def notice(self, message: str) -> None:
        """A sentence that a person should read."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Long work on data; `total` is 0 where it is not known."""

    def begin(self, plan: Plan, preset: str, machine: Machine) -> None:
        """The plan is made and its first cell starts."""

    def on_event(self, event: Event) -> None:
        """An event of `bench/run/events.py`, such as the loss after some steps, or a cell whose Record is stored."""


class LoggingListener:
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


def run_selection(runner: Runner, told: RunListener) -> Records:
    """Plans with the data fetched, runs what is left and returns the Records of the whole selection; `told` listens."""
    made = runner.plan(fetch=True)
    for notice in made.notices:
        told.notice(notice)
    for task, data in made.data.items():
        if data is not None and data.fidelity == "surrogate":
            told.notice(
                f"{task} runs on a surrogate ({data.source}), since the original is not here; "
                f"`attnbench data list {task.name}` says how to get it"
            )
    told.begin(made, str(runner.preset), runner.resources.machine)
    site = runner.resources.site
    if made.blocks and not site.machine_id:
        told.notice(f"{len(made.blocks)} jobs go to {site.executor}; this machine only submits and collects them")
    measured: dict[str, Record] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, CellFinished):
            measured[event.record.key] = event.record
        told.on_event(event)

    runner.run(made, on_event)
    # another command may have measured a part of it meanwhile
    found = [measured.get(step.cell.key) or step.record or runner.record_of(step.cell) for step in made.steps]
    return Records(
        results=runner.request.results,
        records=tuple(record for record in found if record is not None),
        missing=tuple(step.cell for step, record in zip(made.steps, found, strict=True) if record is None),
        measured=tuple(measured.values()),
        left_out=tuple(runner.left_out),
    )


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
