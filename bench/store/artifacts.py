"""Artifacts as boards read them: one that is missing, or not what it claims to be, is left out and breaks nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ..core.decode import MOST_MAGNITUDE, Count, Name, check, parse_json
from ..core.errors import StoreError
from ..stats.bootstrap import corpus_score, sound_statistics
from .packs import DamagedArtifact, arrays_of
from .store import Store

if TYPE_CHECKING:
    import numpy.typing as npt

MOST_EXAMPLES = 250_000
"""The most examples of a test set: intervals draw 400 counts for each."""

MOST_STATISTIC = 1e12
"""Words, characters or bits of one example: sums over examples must not overflow."""

MOST_SETS = 1000
MOST_MAP_BYTES = 64_000_000

Curve = Sequence[Mapping[str, Any]]
"""Points of a training run, each with `step` and the validation results of then: `validation_loss` and so on."""


@dataclass(frozen=True, eq=False)
class ExampleResults:
    """Results by test example. `values`: `statistics`, (examples, k) of float64, or `correct`, (examples,).

    `correct` is 0 or 1, or where an example has several answers the share of them that is right, in float64.
    `documents`: (examples, 2), the two documents of each pair by number; None where examples share none. `setting`:
    (examples,), the place of the setting that each is of, where a test has several.
    """

    values: npt.NDArray[Any]
    documents: npt.NDArray[Any] | None = None
    setting: npt.NDArray[Any] | None = None


@dataclass
class StoredPredictions:
    """Reader of results by example: None for a missing or damaged file, of which it warns once."""

    store: Store
    has_warned: bool = False

    def __call__(self, name: str) -> ExampleResults | None:
        try:
            return results_of(self.store.artifact(name))
        except StoreError as error:
            if not self.has_warned:
                self.has_warned = True
                why = f"{name} is damaged: {error}" if isinstance(error, DamagedArtifact) else error
                self.store.warn(f"not all predictions are paired by example: {why}")
            return None


@dataclass(frozen=True)
class StoredSets:
    """Reader of statistics of sentences by test set: empty for a missing or damaged file."""

    store: Store

    def __call__(self, name: str) -> dict[str, npt.NDArray[Any]]:
        try:
            found = arrays_of(self.store.artifact(name), "sentence_statistics", "sentence_sets", "set_names")
        except StoreError:
            return {}
        if len(found) < 3:
            return {}
        statistics, sets, names = found.values()
        if statistics.ndim != 2 or statistics.dtype != "float64" or len(statistics) > MOST_EXAMPLES:
            return {}
        if not _in_range(statistics):
            return {}
        if sets.shape != statistics.shape[:1] or sets.dtype.kind not in "iu":
            return {}
        if names.ndim != 1 or names.dtype.kind != "U" or len(names) > MOST_SETS:
            return {}
        return {str(each): statistics[sets == number] for number, each in enumerate(names)}


@dataclass(frozen=True)
class StoredCurves:
    """Reader of training curves: None for a missing or damaged file."""

    store: Store

    def __call__(self, name: str) -> Curve | None:
        try:
            return curve_of(self.store.artifact(name))
        except StoreError:
            return None


@dataclass(frozen=True)
class StoredMaps:
    """Reader of attention maps: None for a missing or damaged file."""

    store: Store

    def __call__(self, name: str) -> npt.NDArray[Any] | None:
        try:
            maps = arrays_of(self.store.artifact(name), "maps")["maps"]
        except (StoreError, KeyError):
            return None
        return maps if maps.nbytes <= MOST_MAP_BYTES else None


_DAMAGED: dict[bytes, str] = {}
"""The damage of contents that were read before, by their hash: thousands of Records may name one, and unpacking
it takes 0.4 s each time."""


def results_of(content: bytes) -> ExampleResults:
    """Read the results in an .npz of predictions. Raises DamagedArtifact for results that are missing or malformed."""
    key = hashlib.sha256(content).digest()
    if key in _DAMAGED:
        raise DamagedArtifact(_DAMAGED[key])
    try:
        return _results_of(content)
    except DamagedArtifact as error:
        _DAMAGED[key] = str(error)
        raise


def _results_of(content: bytes) -> ExampleResults:
    found = arrays_of(content, "statistics", "correct", "documents", "setting")
    kept = found.get("statistics", found.get("correct"))
    if kept is None or not 0 < len(kept.shape) <= 2 or not 0 < len(kept) <= MOST_EXAMPLES:
        raise DamagedArtifact(f"it holds no results of 1 to {MOST_EXAMPLES:,} examples")
    is_share = kept.ndim == 1 and kept.dtype in ("uint8", "float64") and bool((kept <= 1).all())
    if not is_share and (kept.ndim != 2 or kept.dtype != "float64"):
        raise DamagedArtifact("its results are neither `correct`, 0 to 1 by example, nor `statistics` in float64")
    if not _in_range(kept):
        raise DamagedArtifact("its statistics are not finite, negative or beyond any text")
    documents = found.get("documents")
    # numbers of documents are counts from 0, so no document is beyond the last of two for each example
    if documents is not None and (
        documents.shape != (len(kept), 2)
        or documents.dtype != "int32"
        or not bool(((documents >= 0) & (documents < 2 * len(kept))).all())
    ):
        raise DamagedArtifact("its `documents` are not two numbers of documents for each example")
    setting = found.get("setting")
    if setting is not None and (setting.shape != kept.shape[:1] or setting.dtype != "uint8"):
        raise DamagedArtifact("its `setting` is not one number for each example")
    return ExampleResults(kept, documents, setting)


def _in_range(statistics: npt.NDArray[Any]) -> bool:
    return bool(((statistics >= 0) & (statistics <= MOST_STATISTIC)).all())


def score_of(metric: str, kept: npt.NDArray[Any]) -> float | None:
    """Compute the score that results by example give; None where the results are not of that metric."""
    if metric == "accuracy":
        return float(kept.mean()) if kept.ndim == 1 else None
    return corpus_score(metric, kept) if sound_statistics(metric, kept) else None


def agrees(found: float, stated: float) -> bool:
    """True if a score is the one that its Record states, but for rounding."""
    return abs(found - stated) <= 1e-6 * max(1.0, abs(stated))


class _Point(msgspec.Struct, frozen=True):
    step: Count


_Number = float | None
_Points = Annotated[
    list[Annotated[dict[Name, _Number], msgspec.Meta(max_length=100)]], msgspec.Meta(max_length=100_000)
]


def curve_of(content: bytes) -> Curve:
    """Read the points of a curve's JSON. Raises DamagedArtifact for any other text."""
    try:
        points = parse_json(content)
        check(list[_Point], points, "a curve")
        points = [{name: _number(each) for name, each in point.items()} for point in points]
        check(_Points, points, "a curve")
    except StoreError as error:
        raise DamagedArtifact(str(error)) from None
    return points


def _number(value: Any) -> Any:
    """Losses that are not finite come as text, see `core.decode.parse_json`; those beyond any loss count as such."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return math.inf if isinstance(value, int | float) and abs(value) > MOST_MAGNITUDE else value
