"""Splits: the token ids of all examples end to end, subsets of these examples in an order, and text as byte ids."""

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
class TokenRows:
    """Rows of a table of token ids: row r is `tokens[starts[r]:starts[r] + lengths[r]]`, then zeros up to `width`.

    starts, lengths: (rows,), no length above `width`. `skipped`: (rows,), the leading ids of each row that are zeros in
    the table; None = none.
    """

    starts: Whole
    lengths: Whole
    width: int
    skipped: Whole | None = None

    def read(self, tokens: Ids) -> Ids:
        """The table, (rows, width), of tokens that lie end to end."""
        # a training waits for this at every step, so no loop over rows: slicing a memory map takes microseconds a row
        last = len(tokens) - self.width
        if last >= 0 and tokens.flags.c_contiguous and (self.starts <= last).all():
            # A view of all windows of that width, of which each row is copied in one piece, with what follows it in the
            # tokens. numpy's `sliding_window_view` takes ten times as long to make one.
            windows: Ids = np.ndarray((last + 1, self.width), tokens.dtype, tokens, strides=2 * tokens.strides)
            table = windows[self.starts]
        elif len(tokens):
            places = self.starts[:, None] + np.arange(self.width)
            table = tokens[np.minimum(places, len(tokens) - 1)]
        else:
            table = np.zeros((len(self.starts), self.width), dtype=np.uint16)
        table = np.asarray(table).astype(np.uint16, copy=False)
        if (real := self.real()) is not None:
            np.multiply(table, real, out=table)
        return table

    def real(self) -> npt.NDArray[np.bool_] | None:
        """The entries of the table that are tokens, (rows, width); None where all are."""
        skips = self.skipped is not None and self.skipped.any()
        if not skips and (self.lengths == self.width).all():
            return None
        # 32 bits: comparing is half of the work, and half as wide is twice as fast
        places = np.arange(self.width, dtype=np.int32)
        real: npt.NDArray[np.bool_] = places < self.lengths.astype(np.int32)[:, None]
        return real & (places >= self.skipped.astype(np.int32)[:, None]) if self.skipped is not None else real


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """The places of the token ids of a batch. It can be read wherever a copy of the tokens is, on the host or a GPU.

    ids: batch * towers rows. labels: (batch,), or the rows of a table of target ids.
    """

    ids: TokenRows
    towers: int
    labels: Whole | TokenRows

    def read(self, tokens: Ids) -> tuple[Ids, Whole, Whole]:
        """ids (batch, towers, width), lengths (batch, towers), labels (batch,) or (batch, width)."""
        examples = len(self.ids.starts) // self.towers
        ids = self.ids.read(tokens).reshape(examples, self.towers, self.ids.width)
        labels = self.labels
        lengths = self.ids.lengths.reshape(-1, self.towers)
        return ids, lengths, labels.read(tokens).astype(np.int64) if isinstance(labels, TokenRows) else labels


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

    def rows(self, sequences: Whole, length: int, width: int | None = None) -> TokenRows:
        """The sequences, cut to `length`, as rows of `width` ids, or of the longest of them.

        With two towers, the sequences of example i are 2i and 2i + 1.
        """
        # not views of a memory map, whose every operation costs microseconds more
        starts, ends = (np.asarray(self.starts[at], dtype=np.int64) for at in (sequences, sequences + 1))
        lengths = np.minimum(ends - starts, length)
        return TokenRows(starts=starts, lengths=lengths, width=int(lengths.max(initial=0)) if width is None else width)

    def subset(self, indices: Whole) -> Subset:
        return Subset(split=self, indices=np.asarray(indices, dtype=np.int64))

    def all(self) -> Subset:
        return Subset(split=self, indices=np.arange(len(self), dtype=np.int64))


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
        return self.layout(at, length).read(self.split.tokens)

    def layout(self, at: Whole, length: int) -> BatchLayout:
        """The places of the token ids of `batch`."""
        chosen, towers = self.indices[at], self.split.towers
        sequences = (chosen[:, None] * towers + np.arange(towers)).ravel()
        return BatchLayout(
            ids=self.split.rows(sequences, length, width=length), towers=towers, labels=self.split.labels[chosen]
        )


def byte_ids(text: bytes) -> Ids:
    """Token ids of a text: byte + 1, since id 0 is padding."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16) + np.uint16(1)


def bytes_of(ids: Ids) -> bytes:
    """The text of ids that `byte_ids` made.

    >>> bytes_of(byte_ids(b"caf\\xc3"))
    b'caf\\xc3'
    """
    return (np.asarray(ids) - np.uint16(1)).astype(np.uint8).tobytes()
