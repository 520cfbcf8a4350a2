"""The contract of an objective: a model, its batches and its evaluation, for one type of problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from ....tasks.contract import Problem, Recipe, Subset, Whole
from ...core.metrics import METRICS
from ...core.order import order
from ...core.record import Measurement
from ...models.blocks import Batch, BuildVariant, Model
from ..device import to_device

Feed = Callable[[int, torch.device], Batch]
"""The batch of a step, on a device; a function of the step alone, so that a run resumes anywhere."""

Choice = Callable[[int], tuple[Subset, Whole]]
"""The examples of the batch of a step: positions in a subset."""

Columns = npt.NDArray[Any]


class Evaluation(ABC):
    """Result of a model on a subset. `loss`: nats per example, or per token of a text."""

    metric: ClassVar[str]
    loss: float

    @property
    @abstractmethod
    def value(self) -> float:
        """In the unit of `metric`."""

    @abstractmethod
    def measurements(self, split: str) -> list[Measurement]:
        """The measurements of a Record."""

    @abstractmethod
    def predictions(self) -> dict[str, Columns]:
        """The arrays of the artifact `predictions`, one row for each example."""

    @property
    def rank(self) -> tuple[float, float]:
        """The higher the better: by the value, then by the loss."""
        # The loss breaks ties: on a small split many steps share an accuracy, and the first of them would win by
        # chance.
        sign = 1.0 if METRICS[self.metric].better == "higher" else -1.0
        return sign * self.value, -self.loss


class Objective(ABC):
    """A type of problem under one recipe. `metric`: the measurement by which steps of a training are compared.

    `measures_attention`: its evaluation of the test split measures attention already, so that the lane does not.
    """

    metric: ClassVar[str]
    measures_attention: ClassVar[bool] = False

    def __init__(self, problem: Problem, recipe: Recipe):
        self.problem, self.recipe = problem, recipe

    @abstractmethod
    def model(self, build: BuildVariant, seed: int, device: str = "cpu") -> Model:
        """The model that every variant of this problem sits in."""

    def batch(self, subset: Subset, at: Whole, device: torch.device) -> Batch:
        """Examples `at`, which are positions in `subset`: its arrays, see `Subset.layout`."""
        return to_device(subset.batch(at, self.recipe.length), device)

    def choice(self, train: Subset, task: str, seed: int) -> Choice | None:
        """`recipe.batch` examples a step, in an order drawn anew each epoch by (task, seed).

        None where examples are made for each step instead of chosen.
        """
        return lambda step: (train, order(step, self.recipe.batch, len(train), task, seed))

    def feed(self, train: Subset, task: str, seed: int) -> Feed:
        """The batches of the examples that `choice` chooses."""
        choice = self.choice(train, task, seed)
        assert choice is not None
        return lambda step, device: self.batch(*choice(step), device)

    @abstractmethod
    def evaluate(
        self, model: Model, subset: Subset, device: torch.device, heartbeat: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Evaluates every example of the subset; `heartbeat` is called after each batch, as a sign of life."""

    @abstractmethod
    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        """Measurements of a trivial baseline on the test split, from the predictions that it returned."""
