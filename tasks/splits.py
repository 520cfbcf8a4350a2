"""Splits: the token ids of all examples end to end, and subsets of these examples in an order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Self

import numpy as np
import numpy.typing as npt

# 16 bits halve the disk and page cache; every vocabulary here has at most 65,536 ids
Ids = npt.NDArray[np.uint16]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Sequences of token ids, end to end: example i is `tokens[starts[i]:starts[i + 1]]`. Arrays may be memory maps.

    With two towers, sequences 2i and 2i + 1 are the pair whose label is `labels[i]`.
    """

    tokens: Ids
    starts: Whole
    labels: Whole
    towers: int = 1

    @classmethod
    def of_rows(cls, rows: Ids, labels: Whole) -> Self:
        """Examples of one length: rows (examples, length), labels (examples,)."""
        starts = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
        return cls(tokens=rows.reshape(-1), starts=starts, labels=labels)

    def __len__(self) -> int:
        return len(self.labels)

    def sequence(self, index: int, tower: int = 0) -> Ids:
        # the sequences of a pair lie side by side, so that one read gets both
        at = index * self.towers + tower
        return self.tokens[self.starts[at] : self.starts[at + 1]]

    def subset(self, indices: Whole) -> Subset:
        return Subset(split=self, indices=np.asarray(indices, dtype=np.int64))

    def all(self) -> Subset:
        return self.subset(np.arange(len(self), dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Examples of a Split, in an order."""

    split: Split
    indices: Whole

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def labels(self) -> Whole:
        return self.split.labels[self.indices]

    def spread(self, count: int | None) -> Self:
        """`count` of these examples, spread evenly. All of them for None, or where there are no more."""
        if count is None or count >= len(self):
            return self
        return replace(self, indices=self.indices[np.linspace(0, len(self) - 1, count).round().astype(np.int64)])

    def sequences(self) -> Iterator[Ids]:
        for index in self.indices:
            for tower in range(self.split.towers):
                yield self.split.sequence(int(index), tower)

    def documents(self) -> npt.NDArray[np.int32]:
        """(examples, towers): a number for each sequence, the same for sequences of the same tokens.

        Examples that share a document are not independent of one another.
        """
        digests = [sha256(sequence.tobytes()).digest() for sequence in self.sequences()]
        numbers = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
        return np.array([numbers[digest] for digest in digests], dtype=np.int32).reshape(-1, self.split.towers)

    def batch(self, at: Whole, length: int) -> tuple[Ids, Whole, Whole]:
        """Examples `at` (positions in this subset), cut or padded to `length`.

        Returns ids (batch, towers, length) with 0 as padding, lengths (batch, towers), labels (batch,).
        """
        towers = self.split.towers
        # zeros are padding, and real ids overwrite them
        ids = np.zeros((len(at), towers, length), dtype=np.uint16)
        lengths = np.zeros((len(at), towers), dtype=np.int64)
        for row, index in enumerate(self.indices[at]):
            for tower in range(towers):
                sequence = self.split.sequence(int(index), tower)[:length]
                ids[row, tower, : len(sequence)] = sequence
                lengths[row, tower] = len(sequence)
        return ids, lengths, self.split.labels[self.indices[at]]
