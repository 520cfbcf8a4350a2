"""Spelling: what the token ids of a text stand for, so that bits are counted by its characters and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from ..contract import Ids, Whole
from ..data.byte_ids import byte_ids

Character = Literal["unicode", "byte"]
"""What bits are counted by: characters of UTF-8 text, or bytes."""

_BLANKS = frozenset(b" \t\n\r\v\f")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spelling:
    """What each id of a vocabulary stands for; `encode` turns any text into ids that spell it byte for byte.

    `pieces`: the bytes of each id, none for 0, which is padding, and for signs that are no text. By id: `characters`
    that begin in it, `inside`, the words that begin in it whatever stands before, `opens` and `closes`, whether it
    begins with a blank and whether it ends with one. A word is what stands between blanks; the end of a line is a word
    too, as for WikiText (Merity et al. 2016).
    """

    pieces: tuple[bytes, ...]
    encode: Callable[[bytes], Ids]
    characters: Whole
    inside: Whole
    opens: npt.NDArray[np.bool_]
    closes: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, pieces: Sequence[bytes], encode: Callable[[bytes], Ids], character: Character = "unicode") -> Self:
        blanks = [[byte in _BLANKS for byte in piece] for piece in pieces]
        begun = [
            piece.count(b"\n") + sum(was and not now for was, now in pairwise(blank))
            for piece, blank in zip(pieces, blanks, strict=True)
        ]
        # of UTF-8 every byte begins a character but those that continue one
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
        """How many words begin with or in each of `ids`, given the id before it.

        >>> ids = BYTES.encode(b"\\n = A b =\\n").astype(np.int64)
        >>> BYTES.words(ids[:-1], ids[1:]).tolist()
        [0, 1, 0, 1, 0, 1, 0, 1, 1]
        """
        begun: Whole = self.inside[ids] + (self.closes[before] & ~self.opens[ids])
        return begun

    def text(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids spell."""
        return b"".join(self.pieces[each] for each in ids)


_BYTE_PIECES = (b"", *(bytes([byte]) for byte in range(256)))

BYTES = Spelling.of(_BYTE_PIECES, byte_ids)
"""Of UTF-8 text, byte by byte."""

RAW_BYTES = Spelling.of(_BYTE_PIECES, byte_ids, "byte")
"""As `BYTES`, where each byte counts as a character."""
