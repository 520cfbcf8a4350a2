"""Subwords: byte pairs learned on a training text. They encode any text without loss; no word is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...bench.core.hashing import content_hash
from ..contract import DataPlace, Ids, Split
from ..data.byte_pairs import cached_model, learn_byte_pairs, sentencepiece
from ..data.prepared import PreparedData, prepare
from ..problems.vocabulary import Character, Vocabulary
from ..splits import bytes_of
from .packing import streamed

BUILDER = 1
MIN_SUBWORDS, MAX_SUBWORDS = 512, 65_535
"""Bounds of the vocabulary's size: 256 bytes and room for pairs; the largest id of 16 bits."""

LEARNING_BYTES = 16_000_000
"""The vocabulary is learned on at most so many bytes, spread over the training text."""

SAMPLE_BYTES = 250_000
ENCODED_LINES = 20_000
"""Lines that are encoded at once: sentencepiece returns Python integers, 40 bytes each."""

_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""sentencepiece's sign for a space. Where a text contains that sign itself, it is encoded in bytes."""

_APART = re.compile(f"([\\n{_MARK}\\udc80-\\udcff])")


def to_subwords(
    prepared: PreparedData, size: int, place: DataPlace, task: str, character: Character
) -> tuple[PreparedData, Vocabulary]:
    """Texts of bytes in at most `size` subwords of their training text, and the vocabulary. Both are cached.

    Raises DataError without the extra `translation`, and for a text with more characters than the size has room for.
    """
    of = prepared.provenance
    library = sentencepiece(", or read bytes by subwords=0")
    # everything that decides the vocabulary: the same texts and size find it in the cache
    identity = {
        "texts": prepared.folder.name if prepared.folder else None, "source": of.source, "files": of.files,
        "size": size, "learned_on": LEARNING_BYTES, "builder": BUILDER, "sentencepiece": library.__version__,
    }  # fmt: skip
    name = f"{task}-{content_hash(identity)}"
    model = cached_model(place, name, lambda: learn(list(_sentences(prepared.splits["train"])), size))
    vocabulary = vocabulary_of(model, size, character)

    def build() -> PreparedData:
        splits = {name: _encoded(split, vocabulary, place) for name, split in prepared.splits.items()}
        counts = {name: len(split.tokens) for name, split in splits.items()}
        share = len(prepared.splits["test"].tokens) / max(counts["test"], 1)
        count = sum(map(bool, vocabulary.pieces))
        note = f"{count:,} subwords (byte pairs) of the training text; {share:.2f} bytes each in the test text"
        return PreparedData(splits=splits, provenance=replace(of, notes=(*of.notes, note)))

    return prepare(place, task, identity, build), vocabulary


def learn(sentences: list[str], size: int) -> bytes:
    """Learn a sentencepiece model that has all 256 bytes among its pieces, and return its bytes."""
    return learn_byte_pairs(
        sentences,
        size,
        instead="; ask for more of them, or for bytes by subwords=0",
        # a character without a subword is encoded as its bytes, so that nothing is unknown
        byte_fallback=True,
        character_coverage=0.9995,
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        max_sentence_length=LEARNING_BYTES,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
    )


def vocabulary_of(model: bytes, size: int, character: Character) -> Vocabulary:
    """The vocabulary of a model, padded to `size`. Ids that the model does not use have no text."""
    processor = sentencepiece().SentencePieceProcessor(model_proto=model)
    pieces = []
    for each in range(processor.get_piece_size()):
        if processor.is_byte(each):
            pieces.append(bytes([int(processor.id_to_piece(each)[1:-1], 16)]))
        elif processor.is_control(each) or processor.is_unknown(each):
            pieces.append(b"")
        else:
            pieces.append(processor.id_to_piece(each).replace(_MARK, " ").encode())
    # pieces of one byte may also be learned; only the fallback ids stand for any byte
    of_byte = {piece: each for each, piece in enumerate(pieces) if processor.is_byte(each)}
    # small texts give fewer pieces than the model has outputs
    pieces += [b""] * (size - len(pieces))
    return Vocabulary.of(pieces, partial(_encode, processor, of_byte), character)


def _encode(processor: Any, of_byte: dict[bytes, int], text: bytes) -> Ids:
    # Bytes that are no UTF-8, as where a text was cut inside a character, are encoded one by one. So are line ends:
    # sentencepiece treats a line as one sentence and drops them.
    parts = _APART.split(text.decode(errors="surrogateescape"))
    plain, alone = parts[::2], [*parts[1::2], ""]
    spelled = {sign: [of_byte[bytes([byte])] for byte in sign.encode(errors="surrogateescape")] for sign in set(alone)}
    found = []
    for first in range(0, len(plain), ENCODED_LINES):
        ids = processor.encode(plain[first : first + ENCODED_LINES])
        signs = (spelled[sign] for sign in alone[first : first + ENCODED_LINES])
        both = chain.from_iterable(zip(ids, signs, strict=True))
        found.append(np.fromiter(chain.from_iterable(both), dtype=np.uint16))
    return np.concatenate(found)


def _encoded(split: Split, vocabulary: Vocabulary, place: DataPlace) -> Split:
    """Each text in subwords, one at a time, since a text of 100 MB takes gigabytes while it is encoded."""
    texts = (vocabulary.encode(bytes_of(split.sequence(at))) for at in range(len(split)))
    place.cache.mkdir(parents=True, exist_ok=True)
    return streamed(texts, place.cache)


def _sentences(split: Split) -> Iterator[str]:
    """The lines that the vocabulary is learned on: all of a short text, samples spread over a long one."""
    total = len(split.tokens)
    if total <= LEARNING_BYTES:
        text = b"\n".join(bytes_of(split.sequence(at)) for at in range(len(split)))
        yield from filter(None, text.decode(errors="ignore").split("\n"))
        return
    for first in np.linspace(0, total - SAMPLE_BYTES, LEARNING_BYTES // SAMPLE_BYTES).astype(np.int64):
        stretch = bytes_of(split.tokens[first : first + SAMPLE_BYTES]).decode(errors="ignore").split("\n")
        # the first and the last line of a sample are cut off; a single line is cut off at both ends, and is kept
        yield from filter(None, stretch[1:-1] or stretch)
