"""Citation pairs: two documents and whether one cites the other, in the format of Long Range Arena's AAN files.

The baseline compares the words that both documents share.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from math import log
from pathlib import Path

import numpy as np

from ...contract import DataError, DataPlace, Dataset, Ids, Provenance, Recipe, Split, Subset, Whole
from ...data.data import DataSource
from ...data.prepared import PreparedData, pack
from ...data.sources import ExportSource, FolderSource
from ...splits import byte_ids, bytes_of

NAME = "lra-retrieval"
FILES = {"train": "new_aan_pairs.train.tsv", "validation": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
FOLDERS = ("lra_release/tsv_data", "lra_release/lra_release/tsv_data", "tsv_data")
OFFICIAL_COUNTS = {"train": 147_086, "validation": 18_090, "test": 17_437}
DOCUMENT = 4_000
HINT = (
    "lra_release.gz (7.7 GB, 18.6 GB unpacked) is linked from github.com/google-research/long-range-arena, which "
    "is reported to refuse downloads; its texts may not be redistributed, so ask who has it, or put pairs of your own "
    "there in its format: label, id1, id2, text1, text2, tabs between, texts as b'…'; those are a surrogate"
)
FITTED = 10_000
"""Training pairs that the baseline fits its threshold on."""

WORD = re.compile(rb"[a-z0-9]+")
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


def sources(place: DataPlace) -> tuple[DataSource, ...]:
    """The folder of the pairs under the root, and an export of them."""
    # people unpack the archive with and without its outer folders
    folders = [folder for folder in FOLDERS if (place.root / folder).is_dir()]
    tree = FolderSource(
        task=NAME,
        name=(folders or FOLDERS)[0],
        parts=tuple(FILES.values()),
        archive="Long Range Arena's lra_release.gz",
        read=read_tree,
        estimate="a minute and 2.9 GB for the official pairs",
        hint=HINT,
    )
    return tree, ExportSource(task=NAME)


def read_tree(root: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The pairs of the three official files. Their counts decide the fidelity: no checksum was ever published."""
    splits = {split: read_pairs(root / name) for split, name in FILES.items()}
    counts = {split: len(each) for split, each in splits.items()}
    notes: tuple[str, ...] = ()
    if counts != OFFICIAL_COUNTS:
        shown = "/".join(f"{count:,}" for count in counts.values())
        notes = (f"other documents in AAN's format: {shown} pairs instead of 147,086/18,090/17,437",)
    fidelity = "surrogate" if notes else "official"
    return PreparedData(
        splits=splits, provenance=Provenance(source=source, fidelity=fidelity, files=files, notes=notes)
    )


def read_pairs(path: Path) -> Split:
    """One file of lines `label id1 id2 text1 text2` with tabs between. Texts are Python bytes literals."""
    documents: list[Ids] = []
    labels: list[int] = []
    with path.open("rb") as file:  # in binary only "\n" ends a line
        for number, line in enumerate(file, start=1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != 5 or columns[0] not in LABELS:
                raise DataError(
                    f"{path}, line {number}: expected a label, two names and two texts, tabs between, got {line[:60]!r}"
                )
            for column in columns[3:]:
                try:
                    # Long Range Arena reads the first 4,000 bytes; the rest would only fill the cache
                    documents.append(byte_ids(literal_bytes(column)[:DOCUMENT]))
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: {error}") from error
            labels.append(LABELS[columns[0]])
    return pack(documents, labels, towers=2)


def literal_bytes(text: bytes) -> bytes:
    """The value of one Python bytes literal such as `b'a\\\\tb'`. Raises ValueError for any other text.

    >>> literal_bytes(rb"b'a\\tb'")
    b'a\\tb'
    """
    if text[:2] not in (b"b'", b'b"') or text[-1:] != text[1:2] or len(text) < 3:
        raise ValueError(f"expected a bytes literal such as b'text', got {text[:40]!r}")
    try:
        # literal_eval builds constants and calls nothing, so a file cannot run code
        value = ast.literal_eval(text.decode("ascii"))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a bytes literal: {text[:40]!r} ({type(error).__name__})") from None
    if not isinstance(value, bytes):
        raise ValueError(f"expected a bytes literal, got {type(value).__name__}: {text[:40]!r}")
    return value


def word_overlap(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict a citation where the weight of shared words passes a threshold. Rare words weigh more (idf).

    The threshold is the one with the most right answers in training.
    """
    train = dataset.train
    if len(train) > FITTED:
        train = train.split.subset(train.indices[np.linspace(0, len(train) - 1, FITTED).astype(np.int64)])
    fitted = list(_pairs(train, recipe.length))
    documents = Counter(word for pair in fitted for words in pair for word in words)
    rarity = {word: log(2 * len(fitted) / count) for word, count in documents.items()}
    scores = np.array([_shared(*pair, rarity) for pair in fitted])
    order = np.argsort(scores, kind="stable")
    cited = train.labels[order]
    # number of right answers when all pairs from position k upwards are called citations
    right = np.concatenate([[0], np.cumsum(cited == 0)]) + np.concatenate([np.cumsum(cited[::-1])[::-1], [0]])
    best = int(right.argmax())
    threshold = scores[order[best]] if best < len(order) else np.inf
    # the threshold, too, comes from training alone
    return np.array(
        [_shared(*pair, rarity) >= threshold for pair in _pairs(dataset.test, recipe.length)], dtype=np.int64
    )


def _pairs(subset: Subset, length: int) -> Iterator[tuple[frozenset[bytes], frozenset[bytes]]]:
    sequences = subset.sequences()
    for first in sequences:
        yield _words(first[:length]), _words(next(sequences)[:length])


def _words(ids: Ids) -> frozenset[bytes]:
    return frozenset(WORD.findall(bytes_of(ids).lower()))


def _shared(first: frozenset[bytes], second: frozenset[bytes], rarity: dict[bytes, float]) -> float:
    """Weight of the shared words, divided by the geometric mean of the weights of both documents."""
    own = [sum(rarity.get(word, 0.0) for word in words) for words in (first, second)]
    return sum(rarity.get(word, 0.0) for word in first & second) / ((own[0] * own[1]) ** 0.5 or 1.0)
