"""wikitext2, wikitext2-char and wikitext103: Wikipedia articles, from the raw files of Merity et al. 2016."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ..contract import DataPlace
from ..data.data import DataSource
from ..data.prepared import PreparedData
from ..data.sources import FolderSource
from .task import LanguageModelingTask, prepared_texts

PARTS = {"train": "wiki.train.raw", "validation": "wiki.valid.raw", "test": "wiki.test.raw"}


class WikiText2(LanguageModelingTask):
    """The next subword of Wikipedia articles, two million words (WikiText-2, raw), with the perplexity of a word.

    The perplexity is 2 to the power of (bits of the test text / its words and line ends, as the data's authors count
    them). No word is unknown, so the result compares with results for any other tokens. Published
    results with <unk> do not compare.
    """

    name: ClassVar[str] = "wikitext2"
    folder: ClassVar[str] = "wikitext-2-raw"
    archive: ClassVar[str] = "wikitext-2-raw-v1.zip"
    estimate: ClassVar[str] = "a second and 27 MB"
    paper: ClassVar[str] = "Merity et al. 2016, Pointer Sentinel Mixture Models"

    def __init__(self, *, subwords: int = 8_000):
        super().__init__(subwords=subwords)

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        tree = FolderSource(
            task=self.name,
            name=self.folder,
            parts=tuple(PARTS.values()),
            archive=self.archive,
            read=read,
            estimate=self.estimate,
            hint="gutenberg-char is a task of the same kind with a text of its own",
        )
        return [tree]


class WikiText2Characters(WikiText2):
    """The next byte of Wikipedia articles, two million words (WikiText-2, raw), by bits per character.

    The text of `wikitext2`, read byte by byte.
    """

    name: ClassVar[str] = "wikitext2-char"

    def __init__(self, *, subwords: int = 0):
        super().__init__(subwords=subwords)


class WikiText103(WikiText2):
    """The next subword of Wikipedia articles, a hundred million words (WikiText-103, raw), with a word's perplexity.

    See `wikitext2` for the perplexity.
    """

    name: ClassVar[str] = "wikitext103"
    folder: ClassVar[str] = "wikitext-103-raw"
    archive: ClassVar[str] = "wikitext-103-raw-v1.zip"
    estimate: ClassVar[str] = "10 s and 1.1 GB, and minutes more for subwords"

    def __init__(self, *, subwords: int = 32_000):
        super().__init__(subwords=subwords)


def read(root: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The three files, each as one text."""
    splits = {split: [(root / name).read_bytes()] for split, name in PARTS.items()}
    # no checksum of the archive was ever published, so only the layout can be checked
    return prepared_texts(splits, source=source, fidelity="official", files=files)
