"""Baselines of language modeling: n-gram models that predict a token from its frequency."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..contract import Dataset, Ids, Recipe, Subset, Whole
from ..problems.language_modeling import LanguageRecipe, Windows

Real = npt.NDArray[np.float64]

CHUNK = 1 << 22
ROWS = 256


def unigram(dataset: Dataset, recipe: Recipe) -> Real:
    """Bits and characters of each test window under the token frequencies of training, with add-one smoothing."""
    bits = -np.log2(frequencies(dataset.train))
    return _spent(dataset, recipe, lambda before, ids: bits[ids])


def bigram(dataset: Dataset, recipe: Recipe) -> Real:
    """The same under the frequencies after each token. The unigram weighs as much as one more pair."""
    shares = frequencies(dataset.train)
    size = len(shares)
    pairs, counts = _pairs(dataset.train.split.tokens, size)
    after = np.bincount(pairs // size, weights=counts, minlength=size)

    def cost(before: Whole, ids: Whole) -> Real:
        wanted = before * size + ids
        place = np.searchsorted(pairs, wanted).clip(max=max(len(pairs) - 1, 0))
        seen = np.where(pairs[place] == wanted, counts[place], 0) if len(pairs) else np.zeros(wanted.shape)
        bits: Real = -np.log2((seen + shares[ids]) / (after[before] + 1))
        return bits

    return _spent(dataset, recipe, cost)


def frequencies(train: Subset) -> Real:
    """Probability of each token but padding, (vocabulary - 1,), with add-one smoothing."""
    assert isinstance(train, Windows)
    tokens, size = train.split.tokens, len(train.vocabulary.pieces) - 1
    counts = np.ones(size)
    # in chunks, since the tokens may be a memory map larger than memory
    for first in range(0, len(tokens), CHUNK):
        counts += np.bincount(np.asarray(tokens[first : first + CHUNK], dtype=np.int64) - 1, minlength=size)
    shares: Real = counts / counts.sum()
    return shares


def _pairs(tokens: Ids, size: int) -> tuple[Whole, Whole]:
    """Each pair of neighbouring tokens as first · size + second, ascending, and its count."""
    pairs, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for first in range(0, len(tokens) - 1, CHUNK):
        part = np.asarray(tokens[first : first + CHUNK + 1], dtype=np.int64) - 1
        coded = part[:-1] * size + part[1:]
        if size * size <= CHUNK:
            # counting in a table is much faster than sorting, where all pairs fit in one
            table = np.bincount(coded, minlength=size * size)
            found = np.flatnonzero(table)
            often = table[found]
        else:
            found, often = np.unique(coded, return_counts=True)
        pairs, where = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        counts = np.bincount(where, weights=np.concatenate([counts, often]), minlength=len(pairs)).astype(np.int64)
    return pairs, counts


def _spent(dataset: Dataset, recipe: Recipe, cost: Callable[[Whole, Whole], Real]) -> Real:
    """Bits and characters of the predictions that count in each test window, (windows, 2).

    `cost`: bits of tokens, given the token before each.
    """
    test = dataset.test
    assert isinstance(test, Windows) and isinstance(recipe, LanguageRecipe)
    found = np.empty((len(test), 2))
    for first in range(0, len(test), ROWS):
        at = np.arange(first, min(first + ROWS, len(test)))
        ids, _, targets = test.batch(at, recipe.length)
        counted = targets > 0
        # predictions that do not count have target 0; their cost is masked below
        before, after = np.maximum(ids[:, 0].astype(np.int64) - 1, 0), np.maximum(targets - 1, 0)
        found[at, 0] = (cost(before, after) * counted).sum(1)
        found[at, 1] = test.vocabulary.characters[targets].sum(1)
    return found
