"""Batches: pairs of like length together, as many as a budget of tokens holds; any step without those before it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ....tasks.contract import Whole
from ...core.hashing import axis_seed


class TokenBatches:
    """The pairs that make up the batch of each step, by (task, seed) and step alone, so that a run resumes anywhere.

    lengths: (pairs,), tokens of the longer side. A batch of n pairs counts n times its longest length, at most
    `tokens`; a pair that is longer by itself is a batch of its own. Every epoch has the same number of batches, sees
    every pair once, and draws anew which pairs of one length meet and in which order batches come.
    """

    def __init__(self, lengths: Whole, tokens: int, *, task: str, seed: int):
        self.task, self.seed = task, seed
        self.lengths = np.asarray(lengths, dtype=np.int64)
        # The same bounds in every epoch, since sorted lengths never change: a step's batch then follows from its number
        # alone, and a run resumes without replaying the epoch.
        self.bounds = bounds(np.sort(self.lengths), tokens)

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.bounds) - 1

    def at(self, step: int) -> Whole:
        """The pairs of one step's batch."""
        epoch, place = divmod(step, len(self))
        order, turns = self._epoch(epoch)
        turn = turns[place]
        return order[self.bounds[turn] : self.bounds[turn + 1]]

    def _epoch(self, epoch: int) -> tuple[Whole, Whole]:
        return _drawn(axis_seed(use="order", task=self.task, seed=self.seed, epoch=epoch), self)


@lru_cache(maxsize=2)
def _drawn(seed: int, batches: TokenBatches) -> tuple[Whole, Whole]:
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(batches.lengths))
    # ties keep the shuffled order, so that sentences of one length meet others in every epoch
    order = shuffled[np.argsort(batches.lengths[shuffled], kind="stable")]
    return order, random.permutation(len(batches))


def bounds(lengths: Whole, tokens: int) -> Whole:
    """The places where batches begin in sorted lengths, the end last.

    >>> import numpy as np
    >>> bounds(np.array([2, 2, 3, 3, 9, 20]), 9).tolist()
    [0, 3, 4, 5, 6]
    """
    starts = [0]
    for at, length in enumerate(lengths):
        if at > starts[-1] and (at + 1 - starts[-1]) * length > tokens:
            starts.append(at)
    return np.array([*starts, len(lengths)] if len(lengths) else [0], dtype=np.int64)
