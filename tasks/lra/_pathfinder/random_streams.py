"""Random streams: thousands side by side, each of which depends on its own key alone.

An image must not depend on which images are drawn beside it, nor on the version of numpy. So the generator is our own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]

STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


def splitmix64(words: Words) -> Words:
    """The output function of SplitMix64 (Steele, Lea & Flood 2014): a bijection that mixes all 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def key(words: Words, at: Array) -> Words:
    """The key of stream number `at` among the streams of each of `words`."""
    return splitmix64(splitmix64(words) + (np.asarray(at).astype(np.uint64) + np.uint64(1)) * STEP)


class Streams:
    """One stream for each key. A draw from one stream changes no other."""

    def __init__(self, keys: Words) -> None:
        self.keys = keys.copy()
        self.counts = np.zeros(len(keys), dtype=np.uint64)

    def restart(self, rows: Array, keys: Words) -> None:
        self.keys[rows] = keys
        self.counts[rows] = 0

    def below(self, rows: Array, bound: Array | int) -> Array:
        """The next number of each of these streams, uniform in [0, bound), for bounds up to 2³²."""
        # a counter per stream, so that no stream advances with another
        self.counts[rows] += np.uint64(1)
        words = splitmix64(self.keys[rows] + self.counts[rows] * STEP)
        # multiply and shift: the upper 32 bits as a fraction of the bound, without the bias and cost of a modulo
        return (((words >> HALF) * np.asarray(bound).astype(np.uint64)) >> HALF).astype(np.int64)
