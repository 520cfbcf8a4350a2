"""Live view of a run: bars with time left on a terminal, a line per finished Cell elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from ..core.record import Machine
from ..plan.planner import Plan, Step
from ..run.events import CellFinished, CellStarted, Event, RunListener, Stage, TrainingProgress, Warned, ended, reached
from .output import console, line_of

COUNT_WIDTH, TIME_WIDTH = 11, 7
"""The widths of `12345/12345` and `1:02:03`, in characters."""

WIDE = 120
"""Columns of a terminal with room for bars."""

QUIET_SECONDS = 30.0
"""Seconds between two reports of a long Cell where output is not a terminal."""


class Live(RunListener):
    """Shows a run on the error stream, so that the leaderboard alone is on standard output."""

    def __init__(self, quiet: bool = False):
        self.console = console(stderr=True, quiet=quiet)
        self._bars = Progress(
            # a long name is cut: at 80 columns it would leave no room for count and time
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=COUNT_WIDTH)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=TIME_WIDTH)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=TIME_WIDTH)),
            *([BarColumn()] if self.console.width >= WIDE else []),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            expand=True,
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._whole: TaskID | None = None
        self._parts: dict[str, TaskID] = {}
        self._jobs: dict[str, str] = {}
        self._unfinished: dict[str, set[str]] = {}
        self._data: dict[str, TaskID] = {}
        self._names: dict[str, str] = {}
        self._plan: Plan | None = None
        self._left: dict[str, Step] = {}
        self._printed = time.monotonic()

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def notice(self, message: str) -> None:
        self.console.print(escape(line_of(message)), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Long work on data: downloads and preparation; `total` is 0 where it is not known."""
        if what not in self._data:
            self._data[what] = self._bars.add_task(what, total=total or None, note="")
            if not self.console.is_terminal:
                self.notice(what)
        self._bars.update(self._data[what], completed=done, total=total or None, visible=not total or done < total)

    def begin(self, plan: Plan, preset: str, machine: Machine) -> None:
        left = plan.left
        self._unfinished = {job.id: {cell.key for cell in job.cells} for job in plan.jobs}
        self._jobs = {key: job for job, keys in self._unfinished.items() for key in keys}
        # the first line says the preset of the whole run
        self._names = {step.cell.key: str(step.cell).replace(f", {preset}, seed ", ", seed ", 1) for step in plan.steps}
        self._plan, self._left = plan, {step.cell.key: step for step in left}
        estimate = f", about {duration(plan.seconds)}" if plan.seconds and not plan.unknown else ""
        self.notice(
            f"preset {preset}, {machine.processor}, {machine.threads} threads"
            + (f", {', '.join(machine.accelerators)}" if machine.accelerators else "")
            + f": {len(left)} of {len(plan.steps)} cells to run{estimate}"
        )
        if self._whole is not None:
            self._bars.remove_task(self._whole)
            self._whole = None
        if left:
            self._whole = self._bars.add_task("cells", total=len(left), note="")

    def on_event(self, event: Event) -> None:
        """One event of a worker."""
        match event:
            case Warned(message):
                self.notice(message)
            case CellStarted(key):
                self._work_on(key)
            case TrainingProgress():
                note = ""
                if event.loss is not None and event.value is not None:
                    note = f"loss {event.loss:.3f}, validation {reached(event.metric, event.value)}"
                self._bars.update(self._work_on(event.key), completed=event.done, total=event.of, note=note)
                if not self.console.is_terminal and time.monotonic() - self._printed > QUIET_SECONDS:
                    self._printed = time.monotonic()
                    self.notice(f"  {self._names.get(event.key, '')}: step {event.done} of {event.of} {note}")
            case Stage(key, stage):
                self._bars.update(self._work_on(key), note=f"measuring: {stage}")
            case CellFinished(record):
                self._left.pop(record.key, None)
                job = self._jobs.get(record.key, "")
                unfinished = self._unfinished.get(job, set())
                unfinished.discard(record.key)
                if not unfinished and job in self._parts:
                    self._bars.remove_task(self._parts.pop(job))
                if self._whole is not None:
                    rest = self._plan.seconds_of(self._left.values()) if self._plan else 0.0
                    self._bars.update(self._whole, advance=1, note=f"about {duration(rest)} left" if rest else "")
                name = self._names.get(record.key, str(record.cell))
                self.notice(f"{ended(record, name)} ({duration(record.seconds)})")
                self._printed = time.monotonic()

    def _work_on(self, key: str) -> TaskID:
        """The bar of the job that this Cell is part of, with the Cell's name: in a timing, Cells take turns."""
        job, name = self._jobs.get(key, ""), self._names.get(key, "")
        if job not in self._parts:
            self._parts[job] = self._bars.add_task(name, total=None, note="")
        bar = self._parts[job]
        if next(task.description for task in self._bars.tasks if task.id == bar) != name:
            self._bars.reset(bar, total=None, description=name, note="")
        return bar


YEAR = 365 * 86400
"""Seconds; nobody waits that long, so that more digits tell nothing."""


def duration(seconds: float | None) -> str:
    """A length of time in words.

    >>> duration(42), duration(125), duration(7_300), duration(200_000), duration(4e7)
    ('42 s', '2 min 5 s', '2 h 1 min', '2 d 7 h', 'a year or more')
    """
    if seconds is None:
        return "unknown time"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h" if whole < YEAR else "a year or more"
