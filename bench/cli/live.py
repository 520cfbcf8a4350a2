"""Live view of a run: bars and the time left of the whole on a terminal, a line per finished Cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import TracebackType

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from ..core.cell import Cell
from ..core.record import Machine, Outcome
from ..core.registry import VARIANTS
from ..plan.planner import Plan, Step
from ..run.events import CellFinished, CellStarted, Event, RunListener, Stage, TrainingProgress, Warned, ended, reached
from ..stats.format import counted
from .output import console, line_of, say

COUNT_WIDTH, TIME_WIDTH, NOTE_WIDTH = 11, 7, 16
"""The widths of `12345/12345`, `1:02:03` and `accuracy 100.0 %`, in characters."""

WIDE = 120
"""Columns of a terminal with room for bars, the time so far and losses."""

PRIOR = 0.1
"""Share of the whole by which an estimate is trusted before anything has ended."""

QUIET_SECONDS = 30.0
"""Seconds between two reports of a long Cell where output is not a terminal."""


class TimeLeft:
    """The time left of a run: the estimates of its plan, corrected by the time that what has ended took.

    It may have several plans, one after another.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._later = 0.0
        self._clock, self._begun = clock, 0.0
        self._ended, self._plan = 0.0, Plan(steps=(), jobs=())
        self._left: dict[str, Step] = {}
        self._shares: dict[str, float] = {}
        # what was left at the last event, and when that was
        self._at: tuple[float, float] = (0.0, 0.0)

    def begin(self, plan: Plan, later: float = 0.0) -> None:
        """Another plan, of what is left and to be run; `later`: estimated seconds of what follows it."""
        self._later = later
        self._begun = self._begun or self._clock()
        self._ended += self._plan.seconds - self._rest()
        self._plan, self._left, self._shares = plan, {step.cell.key: step for step in plan.left}, {}
        self._correct()

    def advance(self, key: str, share: float) -> None:
        """The share of a Cell that is done; it has ended where that is 1."""
        if share < 1 and not self._shares and not self._ended:
            # a start takes seconds once, and says nothing of how long a step takes
            self._begun = self._clock()
        self._shares[key] = share
        if share == 1:
            self._left.pop(key, None)
        self._correct()

    def _rest(self) -> float:
        """Estimated seconds of the present plan that are left."""
        steps = self._left.items()
        return self._plan.seconds_of(
            replace(step, seconds=(step.seconds or 0.0) * (1 - self._shares.get(key, 0.0))) for key, step in steps
        )

    def _correct(self) -> None:
        rest = self._rest()
        ended = self._ended + self._plan.seconds - rest
        prior = PRIOR * (ended + rest + self._later)
        now = self._clock()
        factor = (now - self._begun + prior) / (ended + prior) if prior else 0.0
        self._at = (rest + self._later) * factor, now

    def seconds(self) -> float | None:
        """None where nothing was estimated. Between two events it counts down."""
        left, since = self._at
        return max(left - (self._clock() - since), 0.0) if left else None


class _LeftColumn(TimeRemainingColumn):
    """The time left of a bar by its own steps, or by what it was given for that."""

    def render(self, task: Task) -> Text:
        if "left" not in task.fields:
            return super().render(task)
        seconds = task.fields["left"]()
        shown = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        return Text(shown, style="progress.remaining")


class Live(RunListener):
    """Shows a run on the error stream, so that the leaderboard alone is on standard output.

    `brief`: of the run only the time left of all, and of Cells that end only failures get a line.
    """

    estimates = True

    def __init__(self, quiet: bool = False, brief: bool = False):
        self.console = console(stderr=True, quiet=quiet)
        self.left, self._brief, self._wide = TimeLeft(), brief, self.console.width >= WIDE
        self._bars = Progress(
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=COUNT_WIDTH)),
            *([TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=TIME_WIDTH))] if self._wide else []),
            _LeftColumn(table_column=Column(no_wrap=True, min_width=TIME_WIDTH)),
            *([BarColumn()] if self._wide else []),
            TextColumn(
                "{task.fields[note]}",
                table_column=Column(
                    no_wrap=True, overflow="ellipsis", min_width=NOTE_WIDTH, ratio=1 if self._wide else None
                ),
            ),
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
        self._cells: dict[str, Cell] = {}
        self._printed = time.monotonic()

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print text on standard output at once, above the bars."""
        # rich would send it to the stream of the bars
        if self.console.is_terminal:
            self._bars.stop()
        say(text)
        if self.console.is_terminal:
            self._bars.start()

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
        self._cells = {step.cell.key: step.cell for step in plan.steps}
        self.left.begin(plan, self.later)
        estimate = f", about {duration(plan.seconds)}" if plan.seconds >= 1 else ""
        unknown = f", {plan.unknown} of unknown cost" if plan.unknown and estimate else ""
        variants = {each.cell.variant for each in left if each.cell.lane != "baseline"}
        foreign = [each for each in variants if VARIANTS.is_foreign(each.name)]
        # its time depends on the code, and nobody knows it before
        tests = f", and tests of {counted(len(foreign), 'foreign variant')} before each job" if foreign else ""
        if self._brief:
            rest = self._time_left()
            self.notice(f"  {rest}" if rest and left else "  measured before")
        else:
            self.notice(
                f"preset {preset}, {machine.processor}, {machine.threads} threads"
                + (f", {', '.join(machine.accelerators)}" if machine.accelerators else "")
                + f": {len(left)} of {len(plan.steps)} cells to run{estimate}{unknown}{tests}"
            )
        if self._whole is not None:
            self._bars.remove_task(self._whole)
            self._whole = None
        if left:
            self._whole = self._bars.add_task("all that is left", total=len(left), note="", left=self.left.seconds)

    def on_event(self, event: Event) -> None:
        """One event of a worker."""
        match event:
            case Warned(message):
                self.notice(message)
            case CellStarted(key):
                self._work_on(key)
            case TrainingProgress():
                note = reached(event.metric, event.value) if event.value is not None else ""
                if event.loss is not None and note and (self._wide or not self.console.is_terminal):
                    note = f"loss {event.loss:.3f}, validation {note}"
                if event.done < event.of:
                    self.left.advance(event.key, event.done / event.of)
                self._bars.update(self._work_on(event.key), completed=event.done, total=event.of, note=note)
                if not self.console.is_terminal and time.monotonic() - self._printed > QUIET_SECONDS:
                    self._printed = time.monotonic()
                    step = f"step {event.done} of {event.of}"
                    words = filter(None, [f"  {self._names.get(event.key, '')}: {step}", note, self._time_left()])
                    self.notice(", ".join(words))
            case Stage(key, stage):
                self._bars.update(self._work_on(key), note=f"measuring: {stage}")
            case CellFinished(record):
                self.left.advance(record.key, 1)
                job = self._jobs.get(record.key, "")
                unfinished = self._unfinished.get(job, set())
                unfinished.discard(record.key)
                if not unfinished and job in self._parts:
                    self._bars.remove_task(self._parts.pop(job))
                if self._whole is not None:
                    self._bars.update(self._whole, advance=1)
                name, rest = self._names.get(record.key, str(record.cell)), self._time_left()
                # who is brief marks what was measured in spite of the gate
                marked = record.outcome == Outcome.INCORRECT and record.measurements
                if not self._brief or not (record.outcome == Outcome.OK or marked):
                    self.notice(f"{ended(record, name)} ({duration(record.seconds)}{rest and f'; {rest}'})")
                self._printed = time.monotonic()

    def _time_left(self) -> str:
        seconds = self.left.seconds()
        return f"about {duration(seconds)} left" if seconds else ""

    def _work_on(self, key: str) -> TaskID:
        """The bar of the job that this Cell is part of, with the Cell's name: in a timing, Cells take turns."""
        job, name = self._jobs.get(key, ""), self._names.get(key, "")
        if key in self._cells and not self._wide:
            name = short_name(self._cells[key], self.console.width - COUNT_WIDTH - TIME_WIDTH - NOTE_WIDTH - 3)
        if job not in self._parts:
            self._parts[job] = self._bars.add_task(name, total=None, note="")
        bar = self._parts[job]
        if next(task.description for task in self._bars.tasks if task.id == bar) != name:
            self._bars.reset(bar, total=None, description=name, note="")
        return bar


def short_name(cell: Cell, width: int) -> str:
    """The name of a Cell for a narrow bar: a variant gives way, so that task and seed stay to be read.

    >>> from attnbench.bench.core.spec import Spec
    >>> short_name(Cell(variant=Spec.parse("mine.py:MyAttention"), task=Spec("recall"), preset=Spec("quick")), 28)
    'mine.py:M… on recall, seed 0'
    """
    more = ", timed" if cell.lane == "time" else f", seed {cell.seed}"
    if cell.lane == "tune":
        more = f", rate {cell.preset.get('learning_rate')}{more}"
    rest, name = f" on {cell.task.name}{more}", str(cell.variant)
    room = max(width - len(rest), 8)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + rest


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
