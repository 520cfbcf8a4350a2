"""The order in which examples are drawn, and places spread over a data set."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .hashing import axis_seed

Whole = npt.NDArray[np.int64]


def order(step: int, batch: int, count: int, task: str, seed: int) -> Whole:
    """The `batch` examples of one step out of `count`, each of which comes once an epoch."""
    places = np.arange(step * batch, (step + 1) * batch)
    chosen = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(places // count):
        drawn = axis_seed(use="order", task=task, seed=seed, epoch=int(epoch))
        inside = places // count == epoch
        chosen[inside] = _permutation(drawn, count)[places[inside] % count]
    return chosen


@lru_cache(maxsize=2)
def _permutation(seed: int, count: int) -> Whole:
    return np.random.default_rng(seed).permutation(count)


def evenly_spaced(count: int, wanted: int) -> Whole:
    """Return up to `wanted` places spread over `count`: data may be sorted by label, the first ones of one class."""
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).round().astype(np.int64))
