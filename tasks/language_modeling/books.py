"""pg19 and gutenberg-char: whole books, for contexts of thousands of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from ..contract import Availability, DataPlace, Recipe
from ..data.data import DataSource
from ..data.prepared import PreparedData, prepare
from ..data.sources import FolderSource, checksum
from ..problems.language_modeling import LANGUAGE_PRESETS, LanguageRecipe
from ..splits import byte_ids
from .packing import streamed
from .task import LanguageModelingTask, prepared_texts

LONG = 8_192
PARTS = ("train", "validation", "test")
OFFICIAL_COUNTS = {"train": 28_602, "validation": 50, "test": 100}
BUILDER = 1


def _long() -> dict[str, Recipe]:
    base = LANGUAGE_PRESETS["base"]
    assert isinstance(base, LanguageRecipe)
    return {
        "quick": LanguageRecipe(length=512, stride=256, batch=2, validation_examples=100, test_examples=250),
        "base": replace(base, length=LONG, stride=LONG // 2, batch=4, evaluate_batch=4, validation_examples=100),
    }


class PG19(LanguageModelingTask):
    """The next byte of books (PG-19): a context of 8,192 bytes in the preset `base`.

    A folder for each split, a file for each book: pg19/{train,validation,test}/*.txt.
    """

    name: ClassVar[str] = "pg19"
    paper: ClassVar[str] = "Rae et al. 2020, Compressive Transformers for Long-Range Sequence Modelling"
    recipes: ClassVar[Mapping[str, Recipe]] = _long()

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        tree = FolderSource(
            task=self.name,
            name="pg19",
            parts=PARTS,
            archive="the folders of gs://deepmind-gutenberg",
            # 22 GB of tokens fit in few memories, so they go to the cache book by book
            read=partial(read_folders, scratch=place.cache),
            estimate="minutes and 22 GB, and as much again meanwhile",
            hint="gutenberg-char is a task of the same kind with a few books of its own",
        )
        return [tree]


class GutenbergCharacters(LanguageModelingTask):
    """The next byte of a few books of Project Gutenberg: a surrogate for PG-19 with whatever books are there.

    Every file gutenberg/*.txt is a book. The last tenth of each is held out: its first half validates, its second half
    tests. So all books train, and the end of each is predicted.
    """

    name: ClassVar[str] = "gutenberg-char"
    paper: ClassVar[str] = "after Rae et al. 2020; books of Project Gutenberg"
    recipes: ClassVar[Mapping[str, Recipe]] = _long()

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        return [BooksSource(task=self.name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksSource:
    """A folder of books, `*.txt`."""

    task: str
    folder: str = "gutenberg"

    def books(self, place: DataPlace) -> list[Path]:
        return sorted((place.root / self.folder).glob("*.txt"))

    def availability(self, place: DataPlace) -> Availability:
        root, count = place.root / self.folder, len(self.books(place))
        return Availability(
            source=f"{self.folder}/ books",
            fidelity="surrogate",
            ready=count > 0,
            detail=f"{root}, {count} books",
            advice=f"put books of Project Gutenberg as .txt in {root}",
            estimate="a second and twice their size",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        books = self.books(place)
        root = place.root / self.folder
        if not books:
            return None
        # another book changes the checksum, so the data are prepared anew
        files = {f"{self.folder}/": checksum(place, self.task, root, [book.name for book in books])}
        identity = {"source": "books", "files": files, "builder": BUILDER}
        return prepare(place, self.task, identity, lambda: divided(books, f"{self.folder} books", files))


def divided(books: Sequence[Path], source: str, files: dict[str, str]) -> PreparedData:
    """Split each book: nine tenths train, a twentieth validates, a twentieth tests."""
    splits: dict[str, list[bytes]] = {"train": [], "validation": [], "test": []}
    for book in books:
        text = book.read_bytes()
        # in whole numbers, so that every machine cuts at the same byte
        first, second = len(text) * 18 // 20, len(text) * 19 // 20
        for split, part in zip(splits, (text[:first], text[first:second], text[second:]), strict=True):
            splits[split].append(part)
    note = f"{len(books)} books of Project Gutenberg, the end of each held out; not PG-19"
    return prepared_texts(splits, source=source, fidelity="surrogate", files=files, notes=[note])


def read_folders(root: Path, source: str, files: dict[str, str], scratch: Path) -> PreparedData:
    """A folder for each split, a file for each book. `scratch`: a folder for their tokens until they are prepared."""
    splits = {
        split: streamed((byte_ids(path.read_bytes()) for path in sorted((root / split).glob("*.txt"))), scratch)
        for split in PARTS
    }
    # no checksum of the books was ever published, so layout and counts are all that can be checked
    counts = {split: len(list((root / split).glob("*.txt"))) for split in PARTS}
    shown = "/".join(f"{count:,}" for count in counts.values())
    notes = [] if counts == OFFICIAL_COUNTS else [f"{shown} books instead of 28,602/50/100"]
    return prepared_texts(
        splits, source=source, fidelity="surrogate" if notes else "official", files=files, notes=notes
    )
