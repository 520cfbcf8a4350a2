"""text: the next byte of a text of your own, `text[file=my.txt]` or `--text my.txt`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ...bench.core.files import read_regular
from ..contract import METRICS, Availability, DataError, DataPlace, Dataset, Metric, Range, Recipe, SelectionError
from ..data.data import DataSource
from ..data.own_file import MOST_BYTES, own_checksum, own_file
from ..data.prepared import PreparedData, prepare
from .task import LanguageModelingTask, prepared_texts

NAME = "text"
BUILDER = 1
WANTED = "a file of text"


class OwnText(LanguageModelingTask):
    """The next byte of a UTF-8 file of your own: the first 90 % train, the next 5 % validate, the last 5 % test."""

    name: ClassVar[str] = NAME
    paper: ClassVar[str] = "your own text"
    metric: ClassVar[Metric] = METRICS["bits_per_character"]

    def __init__(self, *, file: str = "", subwords: Annotated[int, Range(0, 65_535)] = 0):
        self.file = file
        super().__init__(subwords=subwords)

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        if not self.file:
            raise SelectionError("expected text[file=my.txt], or --text my.txt")
        return [OwnFile(path=Path(self.file))]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        found = super().load(place, recipe, seed, selection)
        tokens = min(len(part.split.tokens) for part in (found.train, found.validation, found.test))
        if tokens <= recipe.length:
            raise DataError(
                f"{self.file} is too short: its validation or test part has {tokens:,} tokens, and the context is "
                f"{recipe.length:,}; take a longer text, or another preset[length=…]"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """One file of text, named from the folder where the command runs."""

    path: Path

    def availability(self, place: DataPlace) -> Availability:
        return own_file(self.path, WANTED)

    def prepared(self, place: DataPlace) -> PreparedData | None:
        files = own_checksum(place, NAME, self.path, WANTED)
        identity = {"source": "own", "files": files, "builder": BUILDER}
        return prepare(place, NAME, identity, lambda: read(self.path, files))


def read(path: Path, files: dict[str, str]) -> PreparedData:
    """Split the text by characters, in its order. Raises DataError where it is empty or no UTF-8."""
    try:
        text = read_regular(path, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"expected UTF-8 text in {path}, got byte {byte:#x} at {error.start:,}") from None
    if not text.strip():
        raise DataError(f"expected text in {path}, got an empty file")
    first, second = len(text) * 18 // 20, len(text) * 19 // 20
    parts = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
    splits = {name: [part.encode()] for name, part in parts.items()}
    return prepared_texts(splits, source=path.name, fidelity="own", files=files)
