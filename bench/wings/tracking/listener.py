"""Listener that also writes a run to an experiment tracker: one run there for each Cell, while it is measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...core.cell import Cell
from ...core.errors import PluginError, SelectionError, crash_text
from ...core.record import Machine, Outcome, Record
from ...plan.planner import Plan
from ...run.events import CellFinished, CellStarted, Event, RunListener, TrainingProgress
from ...store.artifacts import StoredCurves
from ...store.store import Store

TOLD = ("split", "length", "block", "dtype", "kernel")
"""What narrows a measurement and becomes part of its name there, such as `accuracy/test`."""


class Tracker(RunListener, ABC):
    """Passes all on to `inner`, and curves, final measurements and settings to a library.

    A subclass opens, fills and closes the run of a Cell. An error of the library, such as a network that is gone, ends
    the tracking with one notice, and never the run. `results`: where the library keeps its files, below a folder of its
    name. Raises SelectionError where the library is not installed.
    """

    name: ClassVar[str]

    def __init__(self, inner: RunListener, results: Path):
        self.inner, self.folder, self.store = inner, results / self.name, Store(results)
        self.estimates, self.later = inner.estimates, inner.later
        self._cells: dict[str, Cell] = {}
        self._runs: dict[str, Any] = {}
        self._told: set[tuple[str, int]] = set()
        self._works = True
        try:
            self.setup()
        except ImportError as error:
            raise SelectionError(
                f"--log {self.name} needs a library that is not here ({error}); pip install 'attnbench[{self.name}]'"
            ) from None

    @abstractmethod
    def setup(self) -> None:
        """Imports the library; `--log` is refused before anything is measured where that fails."""

    @abstractmethod
    def open(self, cell: Cell, config: dict[str, Any]) -> Any:
        """The run of a Cell, with what tells it from others."""

    @abstractmethod
    def add(self, run: Any, values: dict[str, float], step: int) -> None:
        """Numbers at a step."""

    @abstractmethod
    def close(self, run: Any, config: dict[str, Any], values: dict[str, float], failed: bool) -> None:
        """The settings in full, the final measurements, and the end of the run."""

    def notice(self, message: str) -> None:
        self.inner.notice(message)

    def progress(self, what: str, done: int, total: int) -> None:
        self.inner.progress(what, done, total)

    def begin(self, plan: Plan, preset: str, machine: Machine) -> None:
        self._cells |= {step.cell.key: step.cell for step in plan.left}
        self.inner.begin(plan, preset, machine)

    def on_event(self, event: Event) -> None:
        self.inner.on_event(event)
        try:
            if self._works:
                self._track(event)
        # a tracker is others' code and often a network: the Records are what counts
        except Exception as error:
            self._works = False
            self.notice(f"{PluginError(self.name, crash_text(error))}; nothing more is logged there, the run goes on")

    def _track(self, event: Event) -> None:
        match event:
            case CellStarted(key) if key in self._cells:
                self._run_of(self._cells[key])
            case TrainingProgress() if event.validated and event.key in self._cells:
                found = {"train/loss": event.loss, "validation/loss": event.validation_loss}
                found[f"validation/{event.metric}"] = event.value
                self._tell(self._cells[event.key], event.validated, found)
            case CellFinished(record):
                # of a training that was resumed, what was told to another run
                for step, values in self._curve(record):
                    self._tell(record.cell, step, values)
                run, failed = self._run_of(record.cell), record.outcome != Outcome.OK
                self.close(run, config_of(record), values_of(record), failed)
                del self._runs[record.key]

    def _tell(self, cell: Cell, step: int, values: Mapping[str, float | None]) -> None:
        """Adds the finite ones of a validation, once."""
        if (cell.key, step) not in self._told:
            self._told.add((cell.key, step))
            known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
            self.add(self._run_of(cell), known, step)

    def _curve(self, record: Record) -> Iterator[tuple[int, dict[str, float]]]:
        """The losses and the metric of each look at the validation split, by step."""
        for point in StoredCurves(self.store)(record.artifacts.get("curve", "")) or ():
            known = {name: float(value) for name, value in point.items() if isinstance(value, int | float)}
            yield (
                int(known["step"]),
                {
                    name.replace("_", "/", 1): value
                    for name, value in known.items()
                    if name.startswith(("train_", "validation_"))
                },
            )

    def _run_of(self, cell: Cell) -> Any:
        if cell.key not in self._runs:
            self._runs[cell.key] = self.open(cell, {"key": cell.key} | cell.to_json())
        return self._runs[cell.key]


def config_of(record: Record) -> dict[str, Any]:
    """The Cell, the preset in full, where it ran and how it ended, as a flat dictionary of plain values."""
    more = {
        "outcome": str(record.outcome), "reason": record.reason, "machine": record.measured_on, "digest": record.digest,
        "implementation": record.implementation, "seconds": record.seconds,
    }  # fmt: skip
    return {name: value for name, value in record.setting.items() if value is not None} | more


def values_of(record: Record) -> dict[str, float]:
    """The finite measurements over the whole model, by name and what narrows them.

    >>> from types import SimpleNamespace as Of
    >>> tested = Of(name="accuracy", value=0.5, where={"split": "test", "examples": 8})
    >>> values_of(Of(measurements=[tested]))
    {'accuracy/test': 0.5}
    """
    found: dict[str, float] = {}
    for one in record.measurements:
        whole = one.where.get("layer") is None and one.where.get("head") is None
        if whole and math.isfinite(one.value):
            parts = [one.name, *(f"{one.where[axis]}" for axis in TOLD if one.where.get(axis) is not None)]
            found.setdefault("/".join(parts), one.value)
    return found
