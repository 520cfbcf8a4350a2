"""The contract of a task: everything that the author of a task imports.

A classification task takes 50 lines: it gets its data, turns them into splits of token ids, and states its recipe for
each preset. Token id 0 is always padding; every other id is real. `Problem` says which kind of task it is.
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
from ..bench.core.spec import Range, Spec
from .preset import PRESETS, Recipe
from .splits import BatchLayout, Ids, Split, Subset, TokenRows, Whole

__all__ = [
    "METRICS",
    "PRESETS",
    "Availability",
    "Baseline",
    "BatchLayout",
    "Classification",
    "DataError",
    "DataPlace",
    "Dataset",
    "Ids",
    "Lane",
    "Metric",
    "Problem",
    "Provenance",
    "Range",
    "Recipe",
    "SelectionError",
    "Spec",
    "Split",
    "Subset",
    "Task",
    "TokenRows",
    "Whole",
    "no_progress",
    "untrained",
]


def as_task(found: Any, name: str) -> type[Task]:
    """The class of a task that somebody named; raises SelectionError for anything else."""
    if isinstance(found, type) and issubclass(found, Task):
        return found
    kind = f"the {type(found).__name__} {name}" if not isinstance(found, type) else f"the class {name}"
    raise SelectionError(f"expected a subclass of attnbench.tasks.contract.Task, got {kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The facts of a task that a model is built from. Its subclasses are the kinds of problem.

    `vocabulary`: token ids are in [0, vocabulary), and 0 is padding. `padded`: whether sequences differ in length.
    `causal`: whether a position attends only to itself and earlier ones.
    """

    # facts of the kind and not of one task: the model, the masks and the gate follow them
    objective: ClassVar[str] = ""
    """Name of its loss, batches and evaluation: in `bench/train/objectives`, or under `attnbench.objectives`."""

    objective_version: ClassVar[int] = 1
    """Raise it when a change of the objective moves the numbers of every variant; every digest holds it."""

    recipe: ClassVar[type[Recipe]] = Recipe

    recipe_words: ClassVar[tuple[str, ...]] = ()
    """The model and its data in words, for the notes below a board: templates over the fields of the recipe."""

    causal: ClassVar[bool] = False

    works_without_attention: ClassVar[bool] = True
    """False where one sequence reads another through attention alone, so that identity cannot take its place."""

    vocabulary: int
    padded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Problem):
    """One label for each sequence, or for each pair of sequences if `towers` is 2.

    `head`: the features of a pair's pooled states x1, x2: nli4 = [x1, x2, x1 * x2, x1 - x2], concat2 = [x1, x2].
    """

    objective: ClassVar[str] = "classification"
    recipe_words: ClassVar[tuple[str, ...]] = (
        "{layers} {layer_noun}, width {width}, {heads} {head_noun}, feed-forward {feed_forward}",
        "{positions} positions, {pooling} pooling",
        "length {length}, batch {batch}, {steps:,} steps",
    )

    classes: int
    towers: int = 1
    head: Literal["nli4", "concat2"] = "nli4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The examples that a Cell trains, validates and tests on, with their provenance."""

    train: Subset
    validation: Subset
    test: Subset
    provenance: Provenance


def no_progress(what: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """The folders of data: `root` holds originals and is only read, `cache` holds downloads and prepared data.

    `offline`: download nothing. `notice` takes a line for the user. `progress` takes the name of long work, units done,
    and units in all (0 = unknown).
    """

    root: Path
    cache: Path
    offline: bool = False
    notice: Callable[[str], None] = field(default=print)
    progress: Callable[[str, int, int], None] = field(default=no_progress)

    def download(self, name: str) -> Path:
        """The path of a download of that name. Only a whole, checked file ever has it."""
        return self.cache / "downloads" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """The state of one way to a task's data. `ready`: usable without a download; `advice`: how to get there.

    `estimate`: time and disk space for fetching and preparing.
    """

    source: str
    fidelity: str
    ready: bool
    detail: str
    advice: str = ""
    estimate: str = ""


Baseline = Callable[[Dataset, Recipe], npt.NDArray[Any]]
"""A trivial predictor: it fits on `dataset.train` and predicts `dataset.test`.

It returns the class of every example, (examples,). For language modeling it returns bits and characters of every
window, float64 (windows, 2).
"""


def untrained(dataset: Dataset, recipe: Recipe) -> npt.NDArray[Any]:
    """A placeholder: the baseline lane scores the reference model at its initial parameters in its place.

    A task has no models, so calling this raises SelectionError.
    """
    raise SelectionError("expected the baseline lane to score the untrained model: a task has no models")


class Task(ABC):
    """A problem with its data and its recipes.

    A subclass takes its parameters as typed keyword arguments and defines `problem`, `availability` and `load`. Its
    docstring is its help text, and `attnbench list tasks` shows the first line.
    """

    lanes: ClassVar[tuple[Lane, ...]] = ("baseline", "train", "time")
    """The lanes that the task has. A task without training has only `time`."""

    metric: ClassVar[Metric] = METRICS["accuracy"]
    """The one source of what a board ranks by; every Record carries it."""

    version: ClassVar[int] = 1
    """Raise it when a change of the task moves its numbers: data, preparation, presets or baselines."""

    paper: ClassVar[str] = ""

    shared: ClassVar[Mapping[str, Recipe]] = PRESETS
    """The recipes by preset that all tasks of a kind share."""

    recipes: ClassVar[Mapping[str, Recipe]] = {}
    """The recipes by preset in which this task differs."""

    baselines: ClassVar[Mapping[str, Baseline]] = {}

    def recipe(self, preset: Spec) -> Recipe:
        """The recipe of this preset, with its overrides. Raises SelectionError for an unknown preset."""
        known = self.presets()
        if preset.name not in known:
            matches = get_close_matches(preset.name.lower(), known, n=1, cutoff=0.5)
            near = f" (did you mean {matches[0]!r}?)" if matches else ""
            raise SelectionError(f"this task has no preset {preset.name!r}{near}; it has: {', '.join(known)}")
        return known[preset.name].with_overrides(preset)

    @classmethod
    def presets(cls) -> dict[str, Recipe]:
        """All recipes by preset."""
        return {**cls.shared, **cls.recipes}

    @abstractmethod
    def problem(self) -> Problem:
        """The kind of problem, with its vocabulary."""

    @abstractmethod
    def availability(self, place: DataPlace) -> list[Availability]:
        """Every way to the data, in the order in which they are tried. Quick, and without a download."""

    @abstractmethod
    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        """The data, prepared on first use and memory-mapped later. Raises DataError that names what is missing.

        The seed decides the validation examples and the slices of training and validation; the test examples are the
        same for every seed. With `selection='test'` validation is the test split.
        """
