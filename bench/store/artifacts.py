"""Artifacts as boards read them: one that is missing, or not what it claims to be, is left out and breaks nothing."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import StoreError
from .store import UNREADABLE, Store

if TYPE_CHECKING:
    import numpy.typing as npt

MOST_MAP_BYTES = 64_000_000

Curve = Sequence[Mapping[str, Any]]
"""Points of a training run, each with `step` and the validation results of then: `validation_loss` and so on."""


@dataclass
class StoredPredictions:
    """Reads results by example; None for those that are missing or damaged, of which it warns once."""

    store: Store
    has_warned: bool = False

    def __call__(self, name: str) -> npt.NDArray[Any] | None:
        try:
            kept, *_ = _arrays(self.store, name, "statistics", "correct")
        except UNREADABLE as error:
            if not self.has_warned:
                self.has_warned = True
                why = error if isinstance(error, StoreError) else f"{name} is not a readable .npz of predictions"
                self.store.warn(f"not all predictions are paired by example: {why}")
            return None
        if kept.dtype == "float64":
            return kept if kept.ndim == 2 else None
        return kept if kept.ndim == 1 and kept.dtype == "uint8" and (kept <= 1).all() else None


@dataclass(frozen=True)
class StoredSets:
    """Reads statistics of sentences by test set; none for those that are missing or damaged."""

    store: Store

    def __call__(self, name: str) -> dict[str, npt.NDArray[Any]]:
        try:
            statistics, sets, names = _arrays(self.store, name, "sentence_statistics", "sentence_sets", "set_names")
        except UNREADABLE:
            return {}
        if statistics.ndim != 2 or sets.shape != statistics.shape[:1] or names.ndim != 1 or names.dtype.kind != "U":
            return {}
        return {str(each): statistics[sets == number] for number, each in enumerate(names)}


@dataclass(frozen=True)
class StoredCurves:
    """Reads training curves; None for those that are missing or damaged."""

    store: Store

    def __call__(self, name: str) -> Curve | None:
        try:
            points = json.loads(self.store.artifact(name).read_text(encoding="utf-8"))
        except (StoreError, OSError, ValueError):
            return None
        sound = isinstance(points, list) and all(isinstance(p, dict) and type(p.get("step")) is int for p in points)
        return points if sound else None


@dataclass(frozen=True)
class StoredMaps:
    """Reads attention maps; None for those that are missing or damaged."""

    store: Store

    def __call__(self, name: str) -> npt.NDArray[Any] | None:
        try:
            with zipfile.ZipFile(self.store.artifact(name)) as archive:
                # a few kilobytes may claim to unpack to any size
                if archive.getinfo("maps.npy").file_size > MOST_MAP_BYTES:
                    return None
            [maps] = _arrays(self.store, name, "maps")
        except UNREADABLE:
            return None
        return maps


def _arrays(store: Store, name: str, *keys: str) -> list[npt.NDArray[Any]]:
    """The arrays of these names that an .npz has; raises one of UNREADABLE."""
    import numpy as np

    with store.artifact(name).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return [np.asarray(file[key]) for key in keys if key in file]
