"""Data: the place of originals and prepared data, tasks that load the first source that has its data, and the examples
that a Cell trains on, validates on and is tested on.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from ...bench.core.hashing import axis_seed
from ..contract import Availability, DataError, DataPlace, Dataset, Recipe, Subset, Task, Whole, no_progress
from .prepared import PreparedData


def place(
    data_dir: Path | None = None,
    offline: bool = False,
    notice: Callable[[str], None] = print,
    progress: Callable[[str, int, int], None] = no_progress,
) -> DataPlace:
    """The root of originals and the cache of this user.

    Root: `data_dir`, else ATTNBENCH_DATA, else ~/.cache/attnbench. Cache: ATTNBENCH_CACHE, else ~/.cache/attnbench.
    Raises DataError where a root that was named is no folder.
    """
    # the default is read and written alike; a root that a person names is only read
    base = os.environ.get("XDG_CACHE_HOME")
    own = (Path(base) if base else Path.home() / ".cache") / "attnbench"
    named = str(data_dir) if data_dir else os.environ.get("ATTNBENCH_DATA", "")
    root = Path(named).expanduser().absolute() if named else own
    # a mistyped folder would look like missing data, and start a download
    if named and not root.is_dir():
        raise DataError(f"expected a folder of original data, got {root}; see --data-dir and ATTNBENCH_DATA")
    cache = os.environ.get("ATTNBENCH_CACHE")
    return DataPlace(
        root=root,
        cache=Path(cache).expanduser().absolute() if cache else own,
        offline=offline,
        notice=notice,
        progress=progress,
    )


class DataSource(Protocol):
    """One way to a task's data."""

    def availability(self, place: DataPlace) -> Availability:
        """The state of this source now. Quick, and without a download."""

    def prepared(self, place: DataPlace) -> PreparedData | None:
        """The data, fetched and prepared where needed; None where there are none, as `availability` explains.

        Raises DataError where the originals are damaged.
        """


def load_first(sources: Sequence[DataSource], place: DataPlace, task: str) -> PreparedData:
    """Return the data of the first source that has them. Raises DataError with the reason of each if no source has."""
    for source in sources:
        found = source.prepared(place)
        if found is not None:
            return found
    lack = DataError(f"{task} has no data here; `attnbench data list {task}` says how to get it")
    # every reason is shown: the user may prefer to repair the first source over using the last
    for source in sources:
        way = source.availability(place)
        lack.add_note(f"- {way.source}: {way.detail}; {way.advice}")
    if place.offline:
        lack.add_note("- --offline forbids downloads")
    raise lack


class SourcedTask(Task):
    """A task whose data come from the first of several sources that has them."""

    name: ClassVar[str]

    @abstractmethod
    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        """The ways to the data, in the order in which they are tried."""

    def availability(self, place: DataPlace) -> list[Availability]:
        return [source.availability(place) for source in self.sources(place)]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        # sequences that are too long are cut when a batch is made
        prepared = load_first(self.sources(place), place, self.name)
        return make_dataset(prepared, task=self.name, recipe=recipe, seed=seed, selection=selection)


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


def make_dataset(prepared: PreparedData, *, task: str, recipe: Recipe, seed: int, selection: str) -> Dataset:
    """Train, validation and test subsets of prepared data. The provenance notes what was left out.

    Data without a validation split give up a tenth of the training split, by seed and label. The test slice depends on
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
        # a text that also stands in training would make validation look too good
        repeated = np.array(prepared.repeated.get("train", ()), dtype=np.int64)
        drawn = axis_seed(use="validation", task=task, seed=seed)
        carved = stratified(train.labels, round(0.1 * len(train)), drawn, repeated)
        held_out = replace(train, indices=carved)
        train = replace(train, indices=np.setdiff1d(train.indices, carved))
    if selection != "test":
        drawn = axis_seed(use="validation slice", task=task, seed=seed)
        held_out = _slice(held_out, recipe.validation_examples, drawn, "validation", notes)
    train = _slice(train, recipe.train_examples, axis_seed(use="train", task=task, seed=seed), "train", notes)
    counts = {"train": len(train), "validation": len(held_out), "test": len(test)}
    provenance = replace(prepared.provenance, counts=counts, notes=tuple(notes))
    return Dataset(train=train, validation=held_out, test=test, provenance=provenance)


def _slice(subset: Subset, count: int | None, seed: int, name: str, notes: list[str]) -> Subset:
    if count is None or count >= len(subset):
        return subset
    notes.append(f"{name}: seeded slice of {count:,} of {len(subset):,}")
    return replace(subset, indices=subset.indices[stratified(subset.labels, count, seed)])
