"""Artifacts as commands read them: what is missing or not what it claims to be is absent, and breaks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from .store import Store
from collections.abc import Mapping, Sequence

MOST_MAP_BYTES = 64_000_000


class StoredPredictions:
    """Reads per-example results; None, told once, for those that are not at hand or are not what they claim to be."""

    def __init__(self, store: Store):
        self.store = store
        self.told = False

    def __call__(self, name: str) -> npt.NDArray[Any] | None:
        import numpy as np

        from ..core.errors import StoreError
        from .store import UNREADABLE

        try:
            with self.store.artifact(name).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                kept: npt.NDArray[Any] = np.asarray(file["statistics" if "statistics" in file else "correct"])
        except UNREADABLE as error:
            if not self.told:
                self.told = True
                why = error if isinstance(error, StoreError) else f"{name} is not a readable .npz of predictions"
                self.store.tell(f"not all predictions are paired by example: {why}")
            return None
        if kept.dtype == np.float64:
            return kept if kept.ndim == 2 else None
        return kept if kept.ndim == 1 and kept.dtype == np.uint8 and (kept <= 1).all() else None


class StoredSets:
    """Reads statistics of sentences by test set; none, told nowhere, for those that are not at hand or not sound."""

    def __init__(self, store: Store):
        self.store = store

    def __call__(self, name: str) -> dict[str, npt.NDArray[Any]]:
        import numpy as np

        from .store import UNREADABLE

        try:
            with self.store.artifact(name).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                statistics, sets, names = (
                    np.asarray(file[key]) for key in ("sentence_statistics", "sentence_sets", "set_names")
                )
        except UNREADABLE:
            return {}
        if statistics.ndim != 2 or sets.shape != statistics.shape[:1] or names.ndim != 1 or names.dtype.kind != "U":
            return {}
        return {str(each): statistics[sets == number] for number, each in enumerate(names)}


class StoredCurves:
    """Reads training curves; None for those that are not at hand."""

    def __init__(self, store: Store):
        self.store = store

    def __call__(self, name: str) -> Curve | None:
        import json

        from ..core.errors import StoreError

        try:
            points = json.loads(self.store.artifact(name).read_text(encoding="utf-8"))
        except (StoreError, OSError, ValueError):
            return None
        sound = isinstance(points, list) and all(isinstance(p, dict) and type(p.get("step")) is int for p in points)
        return points if sound else None


class StoredMaps:
    """Reads attention maps; None for those that are not at hand or not readable as plain arrays."""

    def __init__(self, store: Store):
        self.store = store

    def __call__(self, name: str) -> npt.NDArray[Any] | None:
        import zipfile

        import numpy as np

        from .store import UNREADABLE

        try:
            path = self.store.artifact(name)
            with zipfile.ZipFile(path) as archive:
                # a few kilobytes may claim to unpack to any size
                if archive.getinfo("maps.npy").file_size > MOST_MAP_BYTES:
                    return None
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return np.asarray(file["maps"])
        except UNREADABLE:
            return None


Curve = Sequence[Mapping[str, Any]]
"""Points of a training run, each with `step` and what was measured then: `validation_loss`, `validation_accuracy` …"""
