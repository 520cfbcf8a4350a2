"""Subsets: the examples of prepared data that a Cell trains on, validates on and is tested on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...bench.core.hashing import axis_seed
from ..contract import Dataset, Recipe, Subset, Whole
from .prepared import PreparedData


def stratified(labels: Whole, count: int, seed: int, exclude: Whole | None = None) -> Whole:
    """Sorted positions of `count` examples outside `exclude`, drawn so that each label keeps its share of them all.

    A smaller count with the same seed is a subset of a larger one.

    >>> import numpy as np
    >>> labels = np.array([0] * 60 + [1] * 40)
    >>> np.bincount(labels[stratified(labels, 10, seed=1)]).tolist()
    [6, 4]
    """
    # RandomState: numpy promises that this stream never changes, and a slice must be the same under every version
    order = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).permutation(len(labels))
    if exclude is not None:
        order = order[~np.isin(order, exclude)]
    # sorted by relative rank inside their class, the first `count` examples keep the shares of the classes
    rank = np.empty(len(order), dtype=np.float64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels[order] == label)
        rank[members] = (np.arange(len(members)) + 0.5) / np.count_nonzero(labels == label)
    taken = np.argsort(rank, kind="stable")[:count]
    return np.sort(order[taken]).astype(np.int64)


def make_dataset(
    prepared: PreparedData, *, task: str, recipe: Recipe, seed: int, selection: str, validation_share: float = 0.1
) -> Dataset:
    """Train, validation and test subsets of prepared data. The provenance notes what was left out.

    Data without a validation split give up a share of the training split, by seed and label. The test slice depends on
    the task alone, never on the seed. With `selection='test'` validation is the test subset, and training keeps all of
    its examples.
    """
    notes = list(prepared.provenance.notes)
    train, test = prepared.splits["train"].all(), prepared.splits["test"].all()
    # every seed and every variant is tested on the same examples, since results are paired by example
    test = _slice(test, recipe.test_examples, axis_seed(use="test", task=task), "test", notes)
    if selection == "test":
        held_out = test
        notes.append("the best checkpoint is chosen on the test split, as Long Range Arena does")
    elif "validation" in prepared.splits:
        held_out = prepared.splits["validation"].all()
    else:
        train, held_out = _carve(prepared, validation_share, axis_seed(use="validation", task=task, seed=seed))
    if selection != "test":
        drawn = axis_seed(use="validation slice", task=task, seed=seed)
        held_out = _slice(held_out, recipe.validation_examples, drawn, "validation", notes)
    train = _slice(train, recipe.train_examples, axis_seed(use="train", task=task, seed=seed), "train", notes)
    counts = {"train": len(train), "validation": len(held_out), "test": len(test)}
    provenance = replace(prepared.provenance, counts=counts, notes=tuple(notes))
    return Dataset(train=train, validation=held_out, test=test, provenance=provenance)


def _carve(prepared: PreparedData, share: float, seed: int) -> tuple[Subset, Subset]:
    train = prepared.splits["train"]
    # a text that also stands in training would make validation look too good
    repeated = np.array(prepared.repeated.get("train", ()), dtype=np.int64)
    held_out = stratified(train.labels, round(share * len(train)), seed, repeated)
    return train.subset(np.setdiff1d(np.arange(len(train)), held_out)), train.subset(held_out)


def _slice(subset: Subset, count: int | None, seed: int, name: str, notes: list[str]) -> Subset:
    if count is None or count >= len(subset):
        return subset
    notes.append(f"{name}: seeded slice of {count:,} of {len(subset):,}")
    return subset.split.subset(subset.indices[stratified(subset.labels, count, seed)])
