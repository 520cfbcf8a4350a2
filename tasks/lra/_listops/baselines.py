"""Baselines of ListOps: predictions from the root of an expression, without the value of nested expressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import numpy as np

from ...contract import Dataset, Ids, Recipe, Subset, Whole
from .grammar import CLOSE, DIGIT, OPEN, OPERATORS

FITTED = 30_000
"""Training expressions that are counted; more of them change the time and not the accuracy."""


def root_operator(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict the commonest value among training expressions with the same root operator."""
    return _predict_by_lookup(dataset, recipe, [lambda ids: int(ids[0])])


def root_and_literals(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict the commonest value given the root operator, its value over the digits, and the number of operators.

    A model that scores no better may have learned nothing of nesting.
    """
    return _predict_by_lookup(dataset, recipe, [_root_features, lambda ids: int(ids[0])])


def _root_features(ids: Ids) -> Hashable:
    if ids[0] < OPEN:
        return int(ids[0])
    # digits at depth 1 are literal arguments of the root; operators at depth 2 are its nested arguments
    opens, closes = (ids >= OPEN) & (ids < CLOSE), ids == CLOSE
    depth = np.cumsum(opens.astype(np.int64) - closes)
    digits = np.sort(ids[(depth == 1) & (ids < OPEN)].astype(np.int64) - DIGIT)
    nested = int(np.count_nonzero(opens & (depth == 2)))
    name = OPERATORS[int(ids[0]) - OPEN]
    if name == "MED":
        seen = float(np.median(digits)) if len(digits) else None
    elif name == "SM":
        seen = float(digits.sum() % 10)
    else:
        seen = (float(digits[0 if name == "MIN" else -1])) if len(digits) else None
    return name, seen, nested


def _predict_by_lookup(dataset: Dataset, recipe: Recipe, views: list[Callable[[Ids], Hashable]]) -> Whole:
    """Predict by the first view whose key occurs in training; by the commonest label if no view's key does."""
    train = dataset.train
    if len(train) > FITTED:
        train = train.split.subset(train.indices[np.linspace(0, len(train) - 1, FITTED).astype(np.int64)])
    tables: list[dict[Hashable, Whole]] = [defaultdict(lambda: np.zeros(10, dtype=np.int64)) for _ in views]
    for ids, label in zip(_cut(train, recipe), train.labels.tolist(), strict=True):
        for view, table in zip(views, tables, strict=True):
            table[view(ids)][label] += 1
    # a key of the test set may never occur in training
    fallback = int(np.bincount(train.labels).argmax())
    predicted = []
    for ids in _cut(dataset.test, recipe):
        counts = (table.get(view(ids)) for view, table in zip(views, tables, strict=True))
        predicted.append(next((int(count.argmax()) for count in counts if count is not None), fallback))
    return np.array(predicted, dtype=np.int64)


def _cut(subset: Subset, recipe: Recipe) -> list[Ids]:
    return [ids[: recipe.length] for ids in subset.sequences()]
