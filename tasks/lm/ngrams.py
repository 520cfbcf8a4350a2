"""Baselines of language modelling: bytes predicted by how often they occur, alone or after the one before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..contract import Dataset, Ids, Recipe
from ..language import LanguageRecipe, Windows, characters

Real = npt.NDArray[np.float64]

BYTES = 256
CHUNK = 1 << 22
ROWS = 256


def unigram(dataset: Dataset, recipe: Recipe) -> Real:
    """Bits and characters of each test window under the byte frequencies of training, each byte counted once more."""
    bits = -np.log2(frequencies(dataset.train.split.tokens))
    return _spent(dataset, recipe, lambda before, ids: bits[ids])


def bigram(dataset: Dataset, recipe: Recipe) -> Real:
    """Likewise under the frequencies after each byte, with as much weight on the unigram as one more occurrence has."""
    tokens = dataset.train.split.tokens
    counts = np.zeros(BYTES * BYTES)
    for first in range(0, len(tokens) - 1, CHUNK):
        part = np.asarray(tokens[first : first + CHUNK + 1], dtype=np.int64) - 1
        counts += np.bincount(part[:-1] * BYTES + part[1:], minlength=BYTES * BYTES)
    table = counts.reshape(BYTES, BYTES) + frequencies(tokens)
    bits = -np.log2(table / table.sum(1, keepdims=True))
    return _spent(dataset, recipe, lambda before, ids: bits[before, ids])


def frequencies(tokens: Ids) -> Real:
    """Probability of each byte, (256,), from its count and one."""
    counts = np.ones(BYTES)
    for first in range(0, len(tokens), CHUNK):
        counts += np.bincount(np.asarray(tokens[first : first + CHUNK], dtype=np.int64) - 1, minlength=BYTES)
    shares: Real = counts / counts.sum()
    return shares


def _spent(
    dataset: Dataset, recipe: Recipe, cost: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Real]
) -> Real:
    """(windows, 2): bits and characters of what counts in each test window; `cost` of bytes after others."""
    test = dataset.test
    assert isinstance(test, Windows) and isinstance(recipe, LanguageRecipe)
    found = np.empty((len(test), 2))
    for first in range(0, len(test), ROWS):
        at = np.arange(first, min(first + ROWS, len(test)))
        ids, _, targets = test.batch(at, recipe.length)
        counted = targets > 0
        # what does not count has id 0, which is no byte
        before, after = np.maximum(ids[:, 0].astype(np.int64) - 1, 0), np.maximum(targets - 1, 0)
        found[at, 0] = (cost(before, after) * counted).sum(1)
        found[at, 1] = (characters(targets, test.character) & counted).sum(1)
    return found
