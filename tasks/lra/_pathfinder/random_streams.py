"""Draws: streams of whole random numbers, thousands side by side, each of which depends on its own key alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]

STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


def mixed(words: Words) -> Words:
    """SplitMix64's output function (Steele, Lea & Flood 2014): a bijection whose every output bit depends on all."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def key(words: Words, at: Array) -> Words:
    """Keys of streams: number `at` of the streams that belong to each of `words`."""
    return mixed(mixed(words) + (np.asarray(at).astype(np.uint64) + np.uint64(1)) * STEP)


class Streams:
    """One stream for each key; what one draws, and when, changes no other."""

    def __init__(self, keys: Words) -> None:
        self.keys = keys.copy()
        self.counts = np.zeros(len(keys), dtype=np.uint64)

    def restart(self, rows: Array, keys: Words) -> None:
        self.keys[rows] = keys
        self.counts[rows] = 0

    def below(self, rows: Array, bound: Array | int) -> Array:
        """The next number of each of these streams, uniform in [0, bound), for bounds up to 2³²."""
        self.counts[rows] += np.uint64(1)
        words = mixed(self.keys[rows] + self.counts[rows] * STEP)
        return (((words >> HALF) * np.asarray(bound).astype(np.uint64)) >> HALF).astype(np.int64)
