"""Vocabulary: the text of each token id, and how many characters and words begin in it.

Bits are reported per character and per word, so that models with different vocabularies can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from ..contract import Ids, Whole
from ..splits import byte_ids

Character = Literal["unicode", "byte"]
"""The unit of bits per character: a Unicode character of UTF-8 text, or a byte."""

_BLANKS = frozenset(b" \t\n\r\v\f")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """The text of each token id. `encode` turns any text into ids, and `decode` gives back the same bytes.

    `pieces`: the bytes of each id; none for 0, which is padding, and for control ids. The arrays are indexed by id.
    `characters`: number of characters that begin in it. `inside`: number of words that begin in it, whatever comes
    before. `opens`, `closes`: whether it begins and ends with a blank. Words are separated by blanks, and the end of a
    line is a word too, as for WikiText (Merity et al. 2016).
    """

    pieces: tuple[bytes, ...]
    encode: Callable[[bytes], Ids]
    characters: Whole
    inside: Whole
    opens: npt.NDArray[np.bool_]
    closes: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, pieces: Sequence[bytes], encode: Callable[[bytes], Ids], character: Character = "unicode") -> Self:
        """A vocabulary of these pieces; counts per id are tables, since they are read once for each token."""
        # ASCII blanks only: they are single bytes in UTF-8, so a piece that cuts a character stays countable
        blanks = [[byte in _BLANKS for byte in piece] for piece in pieces]
        begun = [
            piece.count(b"\n") + sum(was and not now for was, now in pairwise(blank))
            for piece, blank in zip(pieces, blanks, strict=True)
        ]
        # in UTF-8, bytes 10xxxxxx continue a character and all others begin one
        counted = [sum(character == "byte" or byte & 0xC0 != 0x80 for byte in piece) for piece in pieces]
        return cls(
            pieces=tuple(pieces),
            encode=encode,
            characters=np.array(counted, dtype=np.int64),
            inside=np.array(begun, dtype=np.int64),
            opens=np.array([blank[:1] == [True] for blank in blanks]),
            closes=np.array([blank[-1:] == [True] for blank in blanks]),
        )

    def words(self, before: Ids, ids: Whole) -> Whole:
        """Number of words that begin in each of `ids`, given the id before it.

        >>> ids = BYTES.encode(b"\\n = A b =\\n").astype(np.int64)
        >>> BYTES.words(ids[:-1], ids[1:]).tolist()
        [0, 1, 0, 1, 0, 1, 0, 1, 1]
        """
        # a piece that starts without a blank begins a word only after a piece that ends with one
        begun: Whole = self.inside[ids] + (self.closes[before] & ~self.opens[ids])
        return begun

    def decode(self, ids: Iterable[int]) -> bytes:
        """The text of these ids."""
        return b"".join(self.pieces[each] for each in ids)


_BYTE_PIECES = (b"", *(bytes([byte]) for byte in range(256)))

BYTES = Vocabulary.of(_BYTE_PIECES, byte_ids)
"""UTF-8 text, byte by byte. Bits are counted per Unicode character."""

RAW_BYTES = Vocabulary.of(_BYTE_PIECES, byte_ids, "byte")
"""The ids of `BYTES`, where each byte counts as a character."""
