"""The contract of a task: all that the author of a task imports.

A classification task is 50 lines: it names its data's sources, turns them into splits of token ids, and states its
recipe per preset. Token id 0 is padding, always; every other id is real.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from ..bench.cell import Lane
from ..bench.errors import SelectionError
from ..bench.record import Provenance
from ..bench.spec import Spec

Ids = npt.NDArray[np.uint16]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a task is judged by: a name of `bench.record.QUANTITIES`. `margin`: non-inferiority margin in `points`.

    A point is one hundredth of the unit for fractions, the unit itself otherwise. `chance`: value of blind guessing.
    """

    name: str = "accuracy"
    margin: float = 1.0
    chance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A preset in full, for one task: model, optimiser, schedule, lengths. All variants of a run share it.

    `length`: tokens per sequence. `test_examples`: a seeded slice of the test split, None = all of it, and likewise for
    validation. `schedule`: learning rate after a linear warm-up of `warmup` steps. `train_examples`: None = all.
    """

    layers: int = 2
    width: int = 64
    heads: int = 2
    feed_forward: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    pooling: Literal["mean", "cls"] = "mean"
    length: int = 512
    batch: int = 32
    steps: int = 200
    learning_rate: float = 1e-3
    warmup: int = 20
    schedule: Literal["linear", "cosine", "constant", "rsqrt"] = "linear"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    clip: float = 1.0
    label_smoothing: float = 0.0
    evaluate_every: int = 50
    evaluate_batch: int = 64
    train_examples: int | None = None
    validation_examples: int | None = 500
    test_examples: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    ranked: bool = True
    timing_seconds: float = 60.0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def with_overrides(self, preset: Spec) -> Recipe:
        """This recipe with the parameters of `quick[learning_rate=3e-3]`; raises SelectionError for a bad one."""
        kinds = get_type_hints(Recipe)
        changes: dict[str, Any] = {}
        for name, value in preset.parameters:
            if name not in kinds or name == "ranked":
                known = ", ".join(kind for kind in kinds if kind != "ranked")
                raise SelectionError(f"preset {preset.name!r} has no parameter {name!r}; it has: {known}")
            changes[name] = _accept(name, kinds[name], value, f"preset {preset.name!r}: expected {name}")
        changed = replace(self, **changes)
        if changed.width % changed.heads:
            raise SelectionError(f"expected heads to divide width, got heads={changed.heads}, width={changed.width}")
        return changed


_MAY_BE_ZERO = ("warmup", "dropout", "attention_dropout", "weight_decay", "clip", "label_smoothing", "beta1", "beta2")


def _accept(name: str, kind: Any, value: Any, expected: str) -> Any:
    """`value` as a field of that type; whole numbers are 1 or more and others 0 or more, save where 0 means none."""
    if get_origin(kind) is Literal:
        options = get_args(kind)
        # the grammar reads the word none as no value
        word = "none" if value is None else value
        if word not in options:
            raise SelectionError(f"{expected} to be {' or '.join(options)}, got {value!r}")
        return word
    if type(None) in get_args(kind) and value is None:
        return None
    is_whole = kind is int or int in get_args(kind)
    least = 0 if name in _MAY_BE_ZERO or not is_whole else 1
    if type(value) is int and not is_whole:
        value = float(value)
    if type(value) is not (int if is_whole else float) or not least <= value < float("inf"):
        noun = "whole number" if is_whole else "number"
        raise SelectionError(f"{expected} to be a {noun} of at least {least}, got {value!r}")
    return value


PRESETS: dict[str, Recipe] = {
    "smoke": Recipe(length=128, batch=8, steps=6, evaluate_every=3, validation_examples=32, test_examples=64,
                    warmup=2, ranked=False, timing_seconds=4.0),
    "quick": Recipe(),
    "pt-2x64": Recipe(length=1024, steps=10_000, warmup=1_000, learning_rate=1e-4, evaluate_every=500,
                      validation_examples=None, precision="bfloat16"),
}  # fmt: skip
"""What a preset means for a task that says nothing else of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the model must know of a task: ids in [0, vocabulary), 0 = padding; `towers` = 2 for pairs of sequences.

    `head`: what two towers' pooled states x1, x2 become; nli4 = [x1, x2, x1 * x2, x1 - x2], concat2 = [x1, x2].
    """

    vocabulary: int
    classes: int
    towers: int = 1
    padded: bool = True
    head: Literal["nli4", "concat2"] = "nli4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Sequences of token ids, end to end: example i is `tokens[starts[i]:starts[i + 1]]`. Arrays may be memory maps.

    With two towers, examples 2i and 2i + 1 of `starts` are the pair whose label is `labels[i]`.
    """

    tokens: Ids
    starts: Whole
    labels: Whole
    towers: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def sequence(self, index: int, tower: int = 0) -> Ids:
        at = index * self.towers + tower
        return self.tokens[self.starts[at] : self.starts[at + 1]]

    def subset(self, indices: Whole) -> Subset:
        return Subset(split=self, indices=np.asarray(indices, dtype=np.int64))

    def all(self) -> Subset:
        return self.subset(np.arange(len(self), dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Some examples of a Split, in an order."""

    split: Split
    indices: Whole

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def labels(self) -> Whole:
        return self.split.labels[self.indices]

    def sequences(self) -> Iterator[Ids]:
        for index in self.indices:
            for tower in range(self.split.towers):
                yield self.split.sequence(int(index), tower)

    def batch(self, at: Whole, length: int) -> tuple[Ids, Whole, Whole]:
        """Examples `at` (positions in this subset), cut and padded to `length`.

        Returns ids (batch, towers, length) with 0 as padding, lengths (batch, towers), labels (batch,).
        """
        towers = self.split.towers
        ids = np.zeros((len(at), towers, length), dtype=np.uint16)
        lengths = np.zeros((len(at), towers), dtype=np.int64)
        for row, index in enumerate(self.indices[at]):
            for tower in range(towers):
                sequence = self.split.sequence(int(index), tower)[:length]
                ids[row, tower, : len(sequence)] = sequence
                lengths[row, tower] = len(sequence)
        return ids, lengths, self.split.labels[self.indices[at]]


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


Baseline = Callable[[Dataset, Recipe], Whole]
"""A trivial predictor: fits on `dataset.train`, returns the predicted class of every test example."""


class Task(ABC):
    """A classification task over one or two sequences.

    A subclass takes its parameters as typed keyword arguments, and defines `problem`, `availability` and `load`.
    """

    lanes: ClassVar[tuple[Lane, ...]] = ("baseline", "train", "time")
    """What can be done with the task; one without training leaves the first two out."""

    metric: ClassVar[Metric] = Metric()
    paper: ClassVar[str] = ""
    suites: ClassVar[tuple[str, ...]] = ()

    recipes: ClassVar[dict[str, Recipe]] = {}
    """Recipes by preset where they differ from PRESETS."""

    baselines: ClassVar[dict[str, Baseline]] = {}

    def recipe(self, preset: Spec) -> Recipe:
        """The preset in full for this task; raises SelectionError for a preset that it does not know."""
        known = PRESETS | self.recipes
        if preset.name not in known:
            raise SelectionError(f"{type(self).__name__} has no preset {preset.name!r}; it has: {', '.join(known)}")
        return known[preset.name].with_overrides(preset)

    @abstractmethod
    def problem(self) -> Problem:
        """Vocabulary, classes and towers."""

    @abstractmethod
    def availability(self, place: DataPlace) -> list[Availability]:
        """Every way to the data, in the order in which they are tried; quick, and without a download."""

    @abstractmethod
    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        """The data, prepared on first use and memory-mapped after. Raises DataError that says what is wanted and where.

        The seed decides the validation carve-out and any slice; with `selection='test'` validation is the test split.
        """
