"""Baselines that several tasks share: a model that does not beat them has learned nothing from the sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..contract import Dataset, Recipe, Subset, Whole

Matrix = npt.NDArray[np.float64]


def majority(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict the commonest label of the training examples."""
    commonest = int(np.bincount(dataset.train.labels).argmax())
    return np.full(len(dataset.test), commonest, dtype=np.int64)


def bag_of_tokens(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict by ridge regression on the counts of each token id in the first `recipe.length` tokens."""
    size = 1 + max(int(subset.split.tokens.max()) for subset in (dataset.train, dataset.test))
    train, test = (_features(subset, recipe.length, size) for subset in (dataset.train, dataset.test))
    return ridge(train, dataset.train.labels, test)


def ridge(train: Matrix, labels: Whole, test: Matrix, penalty: float = 1e-2) -> Whole:
    """Classes of `test` by least squares on one-hot labels, with standardised features.

    train: (examples, features), test: (others, features). `penalty` is relative to the unit variance of the features.
    """
    mean, spread = train.mean(0), train.std(0)
    # a feature that is constant in training tells nothing and has no scale
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
    # square roots of frequencies, so that the commonest bytes do not outweigh the rare ones
    roots: Matrix = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    return roots
