"""Data: where originals and prepared data are, and the first of a task's originals that can be had."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...bench.core.errors import DataError
from ..contract import Availability, DataPlace, no_progress
from .prepared import Prepared


def place(
    data_dir: Path | None = None,
    offline: bool = False,
    notice: Callable[[str], None] = print,
    progress: Callable[[str, int, int], None] = no_progress,
) -> DataPlace:
    """Root: `data_dir`, else ATTNBENCH_DATA, else the user's cache folder. Cache: ATTNBENCH_CACHE, else that folder.

    Raises DataError where a root that was named is no folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    own = (Path(base) if base else Path.home() / ".cache") / "attnbench"
    named = str(data_dir) if data_dir else os.environ.get("ATTNBENCH_DATA", "")
    root = Path(named).expanduser().absolute() if named else own
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Why a source gives nothing here, and what would change that."""

    reason: str


class DataSource(Protocol):
    """One way to a task's data."""

    def availability(self, place: DataPlace) -> Availability:
        """What is there now, quickly and without a download."""

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        """The data, fetched and prepared where needed. Raises DataError for originals that are there but damaged."""


def first_of(sources: Sequence[DataSource], place: DataPlace, task: str) -> Prepared:
    """The prepared data of the first source that has it; raises DataError with every source's reason otherwise."""
    reasons = []
    for source in sources:
        found = source.prepared(place)
        if isinstance(found, Prepared):
            return found
        reasons.append(found.reason)
    tried = "".join(f"\n  - {reason}" for reason in reasons)
    raise DataError(f"{task} has no data here. In the order tried:{tried}")
