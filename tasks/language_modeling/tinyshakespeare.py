"""tinyshakespeare: 40,000 lines of Shakespeare, the text of char-rnn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ..contract import METRICS, DataPlace, Metric, Recipe
from ..data.data import DataSource
from ..data.download import RemoteFile
from ..data.prepared import PreparedData
from ..data.sources import ArchiveSource, DownloadSource
from ..problems.language_modeling import LanguageRecipe
from .task import LanguageModelingTask, prepared_texts

NAME = "tinyshakespeare"

REMOTE = RemoteFile(
    name="tinyshakespeare.txt",
    urls=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    bytes=1_115_394,
)


class TinyShakespeare(LanguageModelingTask):
    """The next byte of a million bytes of Shakespeare's plays (char-rnn's tinyshakespeare).

    The first 90 % train, the next 5 % validate and the last 5 % test, as TensorFlow Datasets splits them.
    """

    name: ClassVar[str] = NAME
    paper: ClassVar[str] = "Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks (char-rnn)"
    metric: ClassVar[Metric] = METRICS["bits_per_character"].with_chance(8.0)

    recipes: ClassVar[Mapping[str, Recipe]] = {
        "quick": LanguageRecipe(validation_examples=None, test_examples=None),
        # frozen, as a test holds: the rows of the record table are compared over years (docs/records.md)
        "record": LanguageRecipe(positions="rope", validation_examples=None, test_examples=None),
        # the size of nanoGPT's character model
        "record-gpu": LanguageRecipe(
            layers=6, width=384, heads=6, feed_forward=1536, dropout=0.2, positions="rope", length=256, stride=128,
            batch=64, steps=2_000, learning_rate=1e-3, validation_examples=None, test_examples=None,
            precision="bfloat16",
        ),
    }  # fmt: skip

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        file = ArchiveSource(task=NAME, remote=REMOTE, read=read, estimate="a second and 2 MB")
        return [file, DownloadSource(archive=file)]


def read(path: Path, source: str, files: dict[str, str]) -> PreparedData:
    """Split the one file by position: neighbouring lines belong to one play."""
    text = path.read_bytes()
    # TensorFlow Datasets takes int(0.9 n) bytes, then half of the rest
    first = int(len(text) * 0.9)
    second = first + (len(text) - first) // 2
    splits = {"train": [text[:first]], "validation": [text[first:second]], "test": [text[second:]]}
    return prepared_texts(splits, source=source, fidelity="official", files=files)
