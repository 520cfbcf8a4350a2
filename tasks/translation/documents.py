"""Documents: consecutive sentence pairs joined, so that attention spans more than one sentence."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise

import numpy as np

from ..contract import Ids, Whole
from .parallel import ParallelSet

MAX_TOKENS = 8_192


def runs(sets: Sequence[ParallelSet], size: int) -> Whole:
    """Starts of the runs of `size` pairs, counted over all sets. A gap or the end of a set ends a run early.

    >>> runs([ParallelSet(name="", source=tuple("abcdef"), target=tuple("ABCDEF"), gaps=frozenset({3}))], 2).tolist()
    [0, 2, 3, 5]
    """
    starts = [np.zeros(0, dtype=np.int64)]
    first = 0
    for each in sets:
        # with a size of 1, gaps change nothing: every pair is a run
        bounds = sorted({0, len(each), *(each.gaps if size > 1 else ())})
        starts += [np.arange(first + begin, first + end, size) for begin, end in pairwise(bounds)]
        first += len(each)
    return np.concatenate(starts)


def spans(
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    size: int,
    most: int = MAX_TOKENS,
    gaps: Set[int] = frozenset(),
) -> list[range]:
    """The sentences of each document: `size` in a row, fewer where either side would exceed `most` tokens.

    A sentence that is longer than `most` is a document by itself. At each of `gaps` a new document begins, since the
    sentences before and after it did not stand together.

    >>> import numpy as np
    >>> sides = [np.ones(3)] * 5
    >>> spans(sides, sides, 2), spans(sides, sides, 5, most=9)
    ([range(0, 2), range(2, 4), range(4, 5)], [range(0, 3), range(3, 5)])
    """
    documents = []
    first = 0
    tokens = [0, 0]
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        joined = [tokens[0] + len(source), tokens[1] + len(target)]
        # both sides count, since encoder and decoder have the same length
        if at > first and (at - first == size or max(joined) > most or at in gaps):
            documents.append(range(first, at))
            first, joined = at, [len(source), len(target)]
        tokens = joined
    if first < len(sources):
        documents.append(range(first, len(sources)))
    return documents


def joined(sequences: Sequence[Ids], documents: Sequence[range]) -> list[Ids]:
    """The sequences of each document end to end, with the END of the last one only."""
    return [
        np.concatenate([*(sequences[at][:-1] for at in document[:-1]), sequences[document[-1]]])
        for document in documents
    ]


def joined_text(lines: Sequence[str], documents: Sequence[range]) -> list[str]:
    """The lines of each document, with a space between."""
    return [" ".join(lines[at] for at in document) for document in documents]
