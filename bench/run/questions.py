"""Questions of a run to its tasks and variants: their data, the shape of their attention, and whether they build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...tasks.contract import Availability, Task
from ...tasks.data.data import place
from ...tasks.sweep_point import Point
from ...variants.contract import AttentionShape
from ..core.errors import AttnbenchError, DataError, PluginError, Unsupported, crash_text
from ..core.record import Provenance
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..models.blocks import attention_shape
from ..process.ask import Reporter, Request

DATA_PATIENCE = 10.0
"""The time that a task may work on its data between two reports of progress, in limits of an ordinary answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindData(Request[Provenance | None]):
    """Find the source of a task's data; None where it is not here and prepared. `fetch`: get it, or raise DataError."""

    task: Spec
    preset: Spec
    selection: str
    data_dir: Path | None
    offline: bool
    fetch: bool

    def answer(self, reporter: Reporter) -> Provenance | None:
        task: Task = TASKS.build(self.task)
        if self.fetch:
            here = place(self.data_dir, self.offline, reporter.notice, reporter.progress)
            return task.load(here, task.recipe(self.preset), 0, self.selection).provenance
        # what is ready is silent, and whoever only asks does not want hours of preparation
        here = place(self.data_dir, True, _stop, _stop)
        ways = task.availability(here)
        try:
            if any(way.ready for way in ways):
                return task.load(here, task.recipe(self.preset), 0, self.selection).provenance
        except _Work:
            pass
        except DataError as lack:
            reporter.notice(str(lack))
        for way in ways:
            if way.fidelity == "own" and not way.ready:
                # no run gets a file that somebody names and that is not there, or is none
                raise DataError(f"{way.detail}; {way.advice}")
        return None


class _Work(Exception):
    """A task began to prepare its data."""


def _stop(*ignored: object) -> None:
    raise _Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOf(Request[AttentionShape]):
    """Ask for the shape of the variant in the first layer."""

    task: Spec
    preset: Spec
    device: str

    def answer(self, reporter: Reporter) -> AttentionShape:
        task: Task = TASKS.build(self.task)
        recipe = task.recipe(self.preset)
        if isinstance(recipe, Point) and recipe.level != "model":
            from .workloads.sweep_point import shape_of

            return shape_of(recipe, torch.device(self.device))
        return attention_shape(task.problem(), recipe, 0, self.device)


@dataclass(frozen=True, slots=True)
class TryBuild(Request[str]):
    """Build a variant once, so that a parameter it refuses raises now and not after hours.

    The answer says how code is called that was not written for the contract; it is empty for all other.
    """

    variant: Spec
    shape: AttentionShape

    def answer(self, reporter: Reporter) -> str:
        # the random numbers of this process are not a variant's to draw
        with torch.random.fork_rng(devices=[]):
            try:
                return str(getattr(VARIANTS.build(self.variant, self.shape), "found", ""))
            except Unsupported:
                # each of its cells gets this outcome, with the reason
                return ""
            except AttnbenchError:
                raise
            except Exception as error:
                raise PluginError(VARIANTS.plugin(self.variant.name), crash_text(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FindSources(Request[list[Availability]]):
    """Every way to the data of a task, without a download."""

    task: Spec
    data_dir: Path | None
    offline: bool = True

    def answer(self, reporter: Reporter) -> list[Availability]:
        task: Task = TASKS.build(self.task)
        return task.availability(place(self.data_dir, self.offline, reporter.notice, reporter.progress))


def tried(ways: list[Availability]) -> str:
    """The ways that a run tries, in its order, up to the first that is ready, with their cost; empty for none."""
    end = next((at for at, way in enumerate(ways) if way.ready), len(ways))
    found = [way for way in ways[: end + 1] if way.ready or way.advice.startswith("attnbench data get")]
    return ", else ".join(f"{way.fidelity}: {way.source}" + f" ({way.estimate})" * bool(way.estimate) for way in found)
