"""The base class of synthetic tasks: streams of random numbers, settings of the test, and trivial baselines."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...bench.core.hashing import axis_seed
from ..contract import (
    METRICS,
    Availability,
    Baseline,
    DataPlace,
    Dataset,
    Lane,
    Metric,
    Provenance,
    Recipe,
    SelectionError,
    Task,
    Whole,
)
from ..problems.token_prediction import (
    UNASKED,
    Setting,
    TokenBatch,
    TokenExamples,
    TokenPrediction,
    TokenRecipe,
    TokenStream,
)

SOURCE = "drawn from a seed by attnbench's own generator"

MAJORITY_BATCHES = 32
"""Training batches in which the commonest answer is looked for."""


def majority(dataset: Dataset, recipe: Recipe) -> Whole:
    """Give the commonest answer of training at every asked position."""
    assert isinstance(dataset.train, TokenStream) and isinstance(dataset.test, TokenExamples)
    drawn = [dataset.train.at(step, recipe.batch, "majority", 0).answers.ravel() for step in range(MAJORITY_BATCHES)]
    counts = np.bincount(np.concatenate(drawn))
    counts[UNASKED] = 0
    return np.full_like(dataset.test.answers[dataset.test.indices], counts.argmax())


def first_value(dataset: Dataset, recipe: Recipe) -> Whole:
    """Give the answer that occurs first in the sequence: it is a value, of some key."""
    test = dataset.test
    assert isinstance(test, TokenExamples)
    answers = test.answers[test.indices]
    values = np.unique(answers[answers != UNASKED])
    found = np.zeros_like(answers)
    for row, index in enumerate(test.indices):
        ids = test.split.sequence(int(index))
        found[row] = ids[np.isin(ids, values).argmax()]
    return found


class SyntheticTask(Task):
    """A task whose sequences are drawn: fresh ones at every step, others for validation, the same tests for all seeds.

    A subclass defines `problem`, `settings`, `training_setting` and `draw`. Lengths are those of its settings: a
    sequence may have some tokens more, as `problem` says.
    """

    lanes: ClassVar[tuple[Lane, ...]] = ("baseline", "train")
    # 2: presets for two cores train until solved, for four times as many steps at most
    version: ClassVar[int] = 2
    name: ClassVar[str]
    shared: ClassVar[Mapping[str, Recipe]] = {}
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority}

    chance: float
    """Accuracy of guessing among the possible answers: of the class, or of one task by its parameters."""

    even: ClassVar[bool] = True
    """True if lengths of training are even, as where sequences are made of pairs."""

    @property
    def metric(self) -> Metric:  # type: ignore[override]
        return METRICS["accuracy"].with_chance(self.chance)

    @abstractmethod
    def problem(self) -> TokenPrediction: ...

    @abstractmethod
    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        """The settings of the test, in equal parts; their lengths are at most `recipe.longest`."""

    @abstractmethod
    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        """Draw this many sequences of a setting; `random` is used for nothing else."""

    @abstractmethod
    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        """A setting for a batch of training sequences of that length."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of this task that its sequences depend on: they are axes of every seed."""
        return {}

    def draw_training(self, recipe: TokenRecipe) -> Callable[[np.random.Generator, int], TokenBatch]:
        """Draws sequences of one length between `recipe.shortest` and `recipe.length`, both of them possible."""

        def drawn(random: np.random.Generator, examples: int) -> TokenBatch:
            step = 2 if self.even else 1
            length = step * int(random.integers(-(-recipe.shortest // step), recipe.length // step + 1))
            return self.draw(random, examples, self.training_setting(random, length))

        return drawn

    def availability(self, place: DataPlace) -> list[Availability]:
        return [Availability(source=SOURCE, fidelity="regenerated", ready=True, detail="nothing is needed")]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        """Test and validation sequences, and the stream of training, each from seeds of its own."""
        assert isinstance(recipe, TokenRecipe)
        settings = self.settings(recipe)
        if not settings:
            raise SelectionError(f"{self.name} has no setting as short as longest={recipe.longest}; take a larger one")
        assert recipe.test_examples is not None and recipe.validation_examples is not None
        each = max(recipe.test_examples // len(settings), 1)
        tests = [self.draw(self._random(use="test", setting=sorted(one.items())), each, one) for one in settings]
        test = TokenExamples.joined(tests, settings)
        stream = TokenStream.of(self.draw_training(recipe))
        # batches of eight, so that validation has sequences of many lengths
        random = self._random(use="validation", seed=seed)
        validation = TokenExamples.joined(
            [
                stream.draw(random, min(8, recipe.validation_examples))
                for _ in range(-(-recipe.validation_examples // 8))
            ]
        )
        notes = ["every training step draws fresh sequences"]
        if selection == "test":
            validation = test
            notes.append("the best checkpoint is chosen on the test split, as Long Range Arena does")
        counts = {"train": recipe.batch * recipe.accumulate * recipe.steps}
        provenance = Provenance(
            source=f"{SOURCE}, {self.name} version {self.version}",
            fidelity="regenerated",
            # no original files: the checksum of the test compares machines
            files={"test": hashlib.sha256(test.split.tokens.tobytes()).hexdigest()},
            counts=counts | {"validation": len(validation), "test": len(test)},
            notes=tuple(notes),
        )
        return Dataset(train=stream, validation=validation, test=test, provenance=provenance)

    def _random(self, **axes: Any) -> np.random.Generator:
        return np.random.default_rng(axis_seed(task=self.name, **self.parameters, **axes))


def distinct(random: np.random.Generator, examples: int, count: int, of: int) -> npt.NDArray[np.int64]:
    """(examples, count): whole numbers below `of`, no two of a row the same, in random order.

    Every choice is as likely as any other. Rows with a repeat are drawn again where few numbers of many are wanted,
    which is faster than ranking all of them.
    """
    if count * count > of:
        ranked: npt.NDArray[np.int64] = random.random((examples, of)).argsort(axis=1)[:, :count]
        return ranked
    drawn = random.integers(of, size=(examples, count))
    while True:
        in_order = np.sort(drawn, axis=1)
        again = np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1))
        if not len(again):
            return drawn
        drawn[again] = random.integers(of, size=(len(again), count))


def lengths_up_to(longest: int, first: int, factor: int = 4) -> tuple[int, ...]:
    """
    >>> lengths_up_to(1_024, 16)
    (16, 64, 256, 1024)
    """
    found = [first]
    while found[-1] * factor <= longest:
        found.append(found[-1] * factor)
    return tuple(length for length in found if length <= longest)
