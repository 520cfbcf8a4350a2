"""enwik8: the first hundred million bytes of the English Wikipedia dump of 2006, markup included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ..contract import METRICS, Availability, DataError, DataPlace, Metric
from ..data.data import DataSource
from ..data.prepared import PreparedData, prepare
from ..data.sources import checksum
from ..problems.vocabulary import Character
from .task import LanguageModelingTask, prepared_texts

NAME = "enwik8"
BYTES = 100_000_000
VALIDATION = TEST = 5_000_000
BUILDER = 1


class Enwik8(LanguageModelingTask):
    """The next byte of the Hutter Prize's text (enwik8): 90, 5 and 5 million bytes.

    A character is a byte here, as in all published results.
    """

    name: ClassVar[str] = NAME
    character: ClassVar[Character] = "byte"
    metric: ClassVar[Metric] = METRICS["bits_per_character"].with_chance(8.0)
    paper: ClassVar[str] = "Mahoney 2006, Large Text Compression Benchmark; split: Graves 2013"

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        return [Enwik8Source()]


class Enwik8Source:
    """The unpacked text under the data root."""

    def path(self, place: DataPlace) -> Path:
        return place.root / NAME

    def availability(self, place: DataPlace) -> Availability:
        path = self.path(place)
        return Availability(
            source=NAME,
            fidelity="official",
            ready=path.is_file(),
            detail=str(path),
            advice=f"put the file enwik8 of mattmahoney.net/dc/enwik8.zip in {place.root} (gutenberg-char is a task of "
            "the same kind with a text of its own)",
            estimate="2 s and 200 MB",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        path = self.path(place)
        # checked by size: the zip archive's checksum says nothing of the unpacked file
        if not path.is_file():
            return None
        if path.stat().st_size != BYTES:
            raise DataError(f"expected {path} of {BYTES:,} bytes, got {path.stat().st_size:,}; unpack it again")
        files = {NAME: checksum(place, NAME, path)}
        identity = {"source": NAME, "files": files, "builder": BUILDER}
        return prepare(place, NAME, identity, lambda: read(path, files))


def read(path: Path, files: dict[str, str]) -> PreparedData:
    """Split the file from its end: the last 5 million bytes test, the 5 million before them validate."""
    # the split of Graves 2013, by position
    text = path.read_bytes()
    first, second = len(text) - VALIDATION - TEST, len(text) - TEST
    splits = {"train": [text[:first]], "validation": [text[first:second]], "test": [text[second:]]}
    return prepared_texts(splits, source=NAME, fidelity="official", files=files)
