"""Subwords: one joint byte-pair vocabulary for both languages, learned on the training slice alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...bench.core.hashing import content_hash
from ..contract import DataPlace, Ids
from ..data.byte_pairs import cached_model, learn_byte_pairs, sentencepiece

PADDING, UNKNOWN, BEGIN, END = range(4)
"""The ids of control pieces in every vocabulary. 0 is padding, as everywhere."""

BUILDER = 1
CHARACTER_COVERAGE = {"zh": 0.9995, "ja": 0.9995}
"""Share of the characters that get a subword of their own. Languages with an alphabet cover all of theirs."""


class Subwords:
    """A joint vocabulary: `decode(encode(text))` is the text with single spaces."""

    def __init__(self, model: bytes):
        self.model = model
        self._processor = sentencepiece().SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, lines: Sequence[str]) -> list[Ids]:
        """Ids of each line, END last."""
        # END closes a source too, so that the encoder sees where a sentence is complete
        return [np.array([*ids, END], dtype=np.uint16) for ids in self._processor.encode(list(lines))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to END, without padding and BEGIN.

        Ids above the last subword are dropped too: the model has as many outputs as its preset says, and small texts
        give fewer subwords.
        """
        inside: list[int] = []
        count = len(self)
        for each in map(int, ids):
            if each == END:
                break
            if each not in (PADDING, BEGIN) and each < count:
                inside.append(each)
        return str(self._processor.decode(inside))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subwords of ids as text, "?" for an id above the last one. A word begins with "▁"."""
        count = len(self)
        return [str(self._processor.id_to_piece(each)) if each < count else "?" for each in map(int, ids)]

    def encode_words(self, words: Sequence[str]) -> tuple[Ids, list[int]]:
        """Ids of separate words, END last, and the position of the word of each id, -1 for END.

        A subword never spans a space, so these are also the ids of the words joined by spaces.
        """
        ids: list[int] = []
        places: list[int] = []
        for place, parts in enumerate(self._processor.encode(list(words))):
            ids += parts
            places += [place] * len(parts)
        return np.array([*ids, END], dtype=np.uint16), [*places, -1]


def learned(place: DataPlace, lines: Sequence[str], size: int, languages: tuple[str, str]) -> Subwords:
    """The vocabulary of at most `size` subwords of `lines`, cached by their content. Small texts give fewer subwords.

    Raises DataError without the extra `translation`, or where the size is too small.
    """
    # thousands of rare Chinese and Japanese characters would fill the vocabulary
    coverage = min(CHARACTER_COVERAGE.get(language, 1.0) for language in languages)
    # another version may learn another model, so the version is part of the name in the cache
    version = sentencepiece().__version__
    identity = {"lines": lines, "size": size, "coverage": coverage, "sentencepiece": version, "builder": BUILDER}
    return Subwords(cached_model(place, content_hash(identity), lambda: learn(lines, size, coverage)))


def learn(lines: Sequence[str], size: int, coverage: float = 1.0) -> bytes:
    """The bytes of a sentencepiece model of these lines as they are: BLEU is computed on what comes out."""
    return learn_byte_pairs(
        lines, size, character_coverage=coverage, pad_id=PADDING, unk_id=UNKNOWN, bos_id=BEGIN, eos_id=END
    )
