"""Data: the place of originals and prepared data, and tasks that load the first source that has its data."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from ..contract import Availability, DataError, DataPlace, Dataset, Recipe, Task, no_progress
from .prepared import PreparedData
from .subsets import make_dataset


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
        prepared = self.at_length(load_first(self.sources(place), place, self.name), recipe.length, place)
        return make_dataset(prepared, task=self.name, recipe=recipe, seed=seed, selection=selection)

    def at_length(self, prepared: PreparedData, length: int, place: DataPlace) -> PreparedData:
        """The same data for a preset of that length. Sequences that are too long are cut when a batch is made."""
        return prepared
