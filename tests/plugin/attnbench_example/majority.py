"""Majority: which of two symbols is the more frequent?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from attnbench.tasks.contract import (
    METRICS,
    Availability,
    Baseline,
    Classification,
    DataPlace,
    Dataset,
    Metric,
    Provenance,
    Recipe,
    SelectionError,
    Spec,
    Split,
    Subset,
    Task,
    Whole,
)


def count(dataset: Dataset, recipe: Recipe) -> Whole:
    """A baseline that needs no model. It returns the predicted class of every test example."""
    return np.array([(symbols == 2).mean() > 0.5 for symbols in dataset.test.sequences()]).astype(np.int64)


class Majority(Task):
    """Which of two symbols is the more frequent."""

    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.5)
    paper: ClassVar[str] = "not published"

    baselines: ClassVar[dict[str, Baseline]] = {"count": count}

    def __init__(self, *, length: int = 63):
        if length < 1 or length % 2 == 0:
            raise SelectionError(f"expected an odd length, so that one symbol is the more frequent, got {length}")
        self.length = length

    def recipe(self, preset: Spec) -> Recipe:
        return replace(super().recipe(preset), length=self.length)

    def problem(self) -> Classification:
        return Classification(vocabulary=3, classes=2, padded=False)

    def availability(self, place: DataPlace) -> list[Availability]:
        return [Availability(source="generator", fidelity="synthetic", ready=True, detail="drawn on demand")]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        train, test = self.draw(2_000, stream=0), self.draw(500, stream=1).all()
        order = np.random.default_rng(seed).permutation(len(train))
        validation = test if selection == "test" else train.subset(order[:200])
        return Dataset(
            train=train.subset(order[200:][: recipe.train_examples]),
            validation=first(validation, recipe.validation_examples),
            test=first(test, recipe.test_examples),
            provenance=Provenance(source="generator 1", fidelity="synthetic"),
        )

    def draw(self, examples: int, stream: int) -> Split:
        """Random symbols 1 and 2. Id 0 is padding, so it occurs nowhere."""
        tokens = np.random.default_rng([7, stream]).integers(1, 3, (examples, self.length), dtype=np.uint16)
        return Split(
            tokens=tokens.reshape(-1),
            starts=np.arange(examples + 1) * self.length,
            labels=(tokens.mean(axis=1) > 1.5).astype(np.int64),
        )


def first(subset: Subset, count: int | None) -> Subset:
    return subset.split.subset(subset.indices[:count])
