"""The files of a new plugin project; `$word` is filled in by `attnbench new`."""

from __future__ import annotations

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "attnbench-$name"
version = "0.1.0"
description = "The $kind $name for attnbench"
requires-python = ">=3.11"
dependencies = ["attnbench"]

[project.entry-points."attnbench.${kind}s"]
$name = "$package.$module:$object"

[tool.setuptools]
packages = ["$package"]
"""

README = """\
# attnbench-$name

The $kind `$name` for attnbench. The code is in `$package/$module.py`.

    pip install -e .
    attnbench show $name
$commands
    python -m pytest
"""

VARIANT_COMMANDS = """\
    attnbench check $name
    attnbench run --variants $name --task recall --preset smoke
    attnbench judge $name"""

TASK_COMMANDS = """\
    attnbench run --variants rela --task $name --preset smoke"""

VARIANT = '''\
"""$name: a map from scores to weights."""

from __future__ import annotations

from torch import Tensor

from attnbench.variants.contract import masked_softmax, score_map


@score_map(
    equation="P = softmax(Q K^T / (sqrt(d) temperature)); O = P V",
    paper="the paper that defines it, or: not published",
)
def $object(scores: Tensor, allowed: Tensor | None, *, temperature: float = 1.0) -> Tensor:
    """Softmax attention with a temperature; say here in one line what $name does.

    scores: (batch, heads, queries, keys); allowed: Boolean, broadcastable to them, or None where every key may be seen.
    Returns weights of the same shape, zero where nothing is allowed. Keyword arguments are the variant's parameters.
    """
    return masked_softmax(scores / temperature, allowed)
'''

VARIANT_TEST = '''\
"""The conformance suite of attnbench on $name."""

import subprocess
import sys


def test_every_property_of_the_gate_holds():
    command = [sys.executable, "-m", "attnbench", "check", "$name"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
'''

TASK = '''\
"""$name: which of two symbols is the more frequent?"""

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


class $object(Task):
    """Which of two symbols is the more frequent; say here in one line what $name asks."""

    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.5)
    paper: ClassVar[str] = "the paper that defines it, or: not published"

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
'''

TASK_TEST = '''\
"""$name says what it promises."""

from pathlib import Path

import numpy as np
from $package.$module import $object

from attnbench.tasks.contract import DataPlace, Spec


def test_labels_say_which_symbol_is_the_more_frequent():
    task = $object()
    recipe = task.recipe(Spec("smoke"))
    dataset = task.load(DataPlace(root=Path(), cache=Path()), recipe, seed=0, selection="validation")
    ids, lengths, labels = dataset.test.batch(np.arange(len(dataset.test)), recipe.length)
    twos = (ids[:, 0] == 2).sum(axis=1)
    assert np.array_equal(labels, (twos > lengths[:, 0] - twos).astype(int))
'''
