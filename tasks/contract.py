"""The contract of a task: all that the author of a task imports.

A classification task is 50 lines: it names its data's sources, turns them into splits of token ids, and states its
recipe per preset. Token id 0 is padding, always; every other id is real. `Problem` says of which kind a task is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy.typing as npt

from ..bench.core.cell import Lane
from ..bench.core.errors import DataError, SelectionError
from ..bench.core.metrics import METRICS, Metric
from ..bench.core.record import Provenance
from ..bench.core.spec import Spec
from .preset import PRESETS, Recipe
from .splits import Ids, Split, Subset, Whole

__all__ = [
    "METRICS",
    "PRESETS",
    "Availability",
    "Baseline",
    "Classification",
    "DataError",
    "DataPlace",
    "Dataset",
    "Ids",
    "Lane",
    "Metric",
    "Problem",
    "Provenance",
    "Recipe",
    "SelectionError",
    "Spec",
    "Split",
    "Subset",
    "Task",
    "Whole",
    "no_progress",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What every model must know of a task: ids in [0, vocabulary), 0 = padding; `padded`: whether lengths differ.

    Its subclasses are the kinds of problem that there are. `causal`: whether attention sees only what came before.
    """

    causal: ClassVar[bool] = False

    vocabulary: int
    padded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Problem):
    """One label for each sequence, or for each pair of sequences where `towers` is 2.

    `head`: what two towers' pooled states x1, x2 become; nli4 = [x1, x2, x1 * x2, x1 - x2], concat2 = [x1, x2].
    """

    classes: int
    towers: int = 1
    head: Literal["nli4", "concat2"] = "nli4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a Cell trains and is judged on; validation is carved from the training split unless the task has its own."""

    train: Subset
    validation: Subset
    test: Subset
    provenance: Provenance


def no_progress(what: str, done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """Where data is: `root` holds originals as a person laid them out, `cache` what we prepared.

    `offline`: no download. `progress` is told of long work: what, units done, units in all (0 = unknown).
    """

    root: Path
    cache: Path
    offline: bool = False
    notice: Callable[[str], None] = field(default=print)
    progress: Callable[[str, int, int], None] = field(default=no_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """One way to a task's data, as found now. `ready`: usable without any download; `advice`: how to get it otherwise.

    `estimate`: time and disk that fetching and preparing it take.
    """

    source: str
    fidelity: str
    ready: bool
    detail: str
    advice: str = ""
    estimate: str = ""


Baseline = Callable[[Dataset, Recipe], npt.NDArray[Any]]
"""A trivial predictor: fits on `dataset.train` and predicts `dataset.test`.

It returns the class of every example; for a language, float64 (windows, 2): bits spent, and characters.
"""


class Task(ABC):
    """A problem with its data and its recipes.

    A subclass takes its parameters as typed keyword arguments, and defines `problem`, `availability` and `load`.
    """

    lanes: ClassVar[tuple[Lane, ...]] = ("baseline", "train", "time")
    """What can be done with the task; one without training leaves the first two out."""

    metric: ClassVar[Metric] = METRICS["accuracy"]
    """The one source of what a board ranks by; every Record carries it."""

    objective: ClassVar[str] = "classification"
    """Loss, batches and evaluation: `classification`, `language_modeling`, `translation`; empty where none is trained."""

    version: ClassVar[int] = 1
    """Raise it when a change of the task moves its numbers: data, preparation, presets or baselines."""

    paper: ClassVar[str] = ""
    suites: ClassVar[tuple[str, ...]] = ()

    shared: ClassVar[Mapping[str, Recipe]] = PRESETS
    """Recipes by preset that tasks of this kind share."""

    recipes: ClassVar[Mapping[str, Recipe]] = {}
    """Recipes by preset where they differ from those shared."""

    baselines: ClassVar[Mapping[str, Baseline]] = {}

    def recipe(self, preset: Spec) -> Recipe:
        """The preset in full for this task; raises SelectionError for a preset that it does not know."""
        known = self.presets()
        if preset.name not in known:
            matches = get_close_matches(preset.name, known, n=1, cutoff=0.5)
            near = f" (did you mean {matches[0]!r}?)" if matches else ""
            raise SelectionError(f"this task has no preset {preset.name!r}{near}; it has: {', '.join(known)}")
        return known[preset.name].with_overrides(preset)

    @classmethod
    def presets(cls) -> dict[str, Recipe]:
        """All recipes by preset."""
        return {**cls.shared, **cls.recipes}

    @abstractmethod
    def problem(self) -> Problem:
        """Of which kind the task is, with its vocabulary."""

    @abstractmethod
    def availability(self, place: DataPlace) -> list[Availability]:
        """Every way to the data, in the order in which they are tried; quick, and without a download."""

    @abstractmethod
    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        """The data, prepared on first use and memory-mapped after. Raises DataError that says what is wanted and where.

        The seed decides the validation carve-out and any slice; with `selection='test'` validation is the test split.
        """
