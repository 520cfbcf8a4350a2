"""Packing: texts as splits of token ids, in memory or streamed through a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from ..contract import Ids, Split
from ..data.prepared import pack, write_errors
from ..splits import byte_ids


def texts(split: Iterable[bytes]) -> Split:
    """A split of byte ids with one example for each text."""
    parts = [byte_ids(text) for text in split]
    return pack(parts, [0] * len(parts))


def streamed(sequences: Iterable[Ids], scratch: Path) -> Split:
    """A split with one example for each sequence. They are read one by one into a nameless file under `scratch`.

    Texts of any size fit: PG-19 has 22 GB of tokens. The disk space is free again when the split is no longer used.
    Raises DataError where `scratch` cannot be written.
    """
    ends = [0]
    with write_errors(scratch), TemporaryFile(dir=scratch) as file:
        for ids in sequences:
            file.write(ids.tobytes())
            ends.append(ends[-1] + len(ids))
        file.flush()
        # the map outlives the open file; an empty file cannot be mapped
        tokens = np.memmap(file, dtype=np.uint16, mode="r") if ends[-1] else np.zeros(0, dtype=np.uint16)
    return Split(tokens=tokens, starts=np.array(ends), labels=np.zeros(len(ends) - 1, dtype=np.int64))


def joined(split: Split) -> Split:
    """The same tokens as one text, so that training windows cross the ends of texts."""
    return replace(split, starts=np.array([0, len(split.tokens)]), labels=np.zeros(1, dtype=np.int64))
