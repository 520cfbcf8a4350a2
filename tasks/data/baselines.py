"""Baselines that several tasks share: predictors so simple that a model must beat them to have learned anything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..contract import Dataset, Recipe, Subset, Whole

Matrix = npt.NDArray[np.float64]


def majority(dataset: Dataset, recipe: Recipe) -> Whole:
    """The commonest label of the training examples, for every test example."""
    commonest = int(np.bincount(dataset.train.labels).argmax())
    return np.full(len(dataset.test), commonest, dtype=np.int64)


def bag_of_tokens(dataset: Dataset, recipe: Recipe) -> Whole:
    """Ridge regression of the label on how often each token id occurs in the first `recipe.length` tokens."""
    size = 1 + max(int(subset.split.tokens.max()) for subset in (dataset.train, dataset.test))
    train, test = (_features(subset, recipe.length, size) for subset in (dataset.train, dataset.test))
    return ridge(train, dataset.train.labels, test)


def ridge(train: Matrix, labels: Whole, test: Matrix, penalty: float = 1e-2) -> Whole:
    """Classes of `test` by least squares on one-hot labels, features standardised.

    train: (examples, features), test: (others, features); `penalty` is relative to the features' unit variance.
    """
    mean, spread = train.mean(0), train.std(0)
    used = spread > 0
    train, test = ((rows[:, used] - mean[used]) / spread[used] for rows in (train, test))
    targets = np.eye(int(labels.max()) + 1)[labels]
    gram = train.T @ train / len(train) + penalty * np.eye(train.shape[1])
    weights = np.linalg.solve(gram, train.T @ (targets - targets.mean(0)) / len(train))
    scores: Matrix = test @ weights + targets.mean(0)
    return np.asarray(scores.argmax(1), dtype=np.int64)


def _features(subset: Subset, length: int, size: int) -> Matrix:
    counts = np.empty((len(subset), size), dtype=np.float64)
    for row, sequence in enumerate(subset.sequences()):
        counts[row] = np.bincount(sequence[:length], minlength=size)
    # frequencies, on a root scale so that rare bytes are not drowned by the letter e
    roots: Matrix = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    return roots
