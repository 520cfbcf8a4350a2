"""Baseline of retrieval: the words that two documents share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import log

import numpy as np
import numpy.typing as npt

from ...contract import Dataset, Ids, Recipe, Subset, Whole

FITTED = 10_000
WORD = re.compile(rb"[a-z0-9]+")


def word_overlap(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict a citation where the weight of shared words passes a threshold. Rare words weigh more (idf).

    The threshold is the one with the most right answers in training.
    """
    train = dataset.train
    if len(train) > FITTED:
        train = train.split.subset(train.indices[np.linspace(0, len(train) - 1, FITTED).astype(np.int64)])
    fitted = list(_pairs(train, recipe.length))
    documents = Counter(word for pair in fitted for words in pair for word in words)
    rarity = {word: log(2 * len(fitted) / count) for word, count in documents.items()}
    scores = np.array([_shared(*pair, rarity) for pair in fitted])
    order = np.argsort(scores, kind="stable")
    cited = train.labels[order]
    # number of right answers when all pairs from position k upwards are called citations
    right = np.concatenate([[0], np.cumsum(cited == 0)]) + np.concatenate([np.cumsum(cited[::-1])[::-1], [0]])
    best = int(right.argmax())
    threshold = scores[order[best]] if best < len(order) else np.inf
    # the threshold, too, comes from training alone
    return np.array(
        [_shared(*pair, rarity) >= threshold for pair in _pairs(dataset.test, recipe.length)], dtype=np.int64
    )


def _pairs(subset: Subset, length: int) -> Iterator[tuple[frozenset[bytes], frozenset[bytes]]]:
    sequences = subset.sequences()
    for first in sequences:
        yield _words(first[:length]), _words(next(sequences)[:length])


def _words(ids: Ids) -> frozenset[bytes]:
    text: npt.NDArray[np.uint8] = (ids - 1).astype(np.uint8)
    return frozenset(WORD.findall(text.tobytes().lower()))


def _shared(first: frozenset[bytes], second: frozenset[bytes], rarity: dict[bytes, float]) -> float:
    """Weight of the shared words, divided by the geometric mean of the weights of both documents."""
    own = [sum(rarity.get(word, 0.0) for word in words) for words in (first, second)]
    return sum(rarity.get(word, 0.0) for word in first & second) / ((own[0] * own[1]) ** 0.5 or 1.0)
