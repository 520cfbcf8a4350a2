"""Sources: the ways to original data that several tasks share, each fetching nothing unless it must."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...bench.core.errors import DataError
from ..contract import Availability, DataPlace
from .checksums import file_checksum, tree_checksum
from .data import Unavailable
from .download import Remote, Unreachable, downloaded, fetch
from .prepared import Prepared, is_complete, prepare, prepared_folder

Read = Callable[[Path, str, dict[str, str]], Prepared]
"""(path of the original, name of the source, checksums by file) → prepared data, whose fidelity it decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """An unpacked official folder under the data root. `parts`: folders of files, or files, that make it whole.

    `hint`: where the archive can be had.
    """

    task: str
    name: str
    parts: tuple[str, ...]
    archive: str
    read: Read = field(repr=False)
    builder: int = 1
    estimate: str = ""
    hint: str = ""

    def availability(self, place: DataPlace) -> Availability:
        root = place.root / self.name
        missing = self.missing(place)
        return Availability(
            source=f"{self.name}/ tree",
            fidelity="official",
            ready=not missing,
            detail=f"{root} lacks {', '.join(missing)}" if root.is_dir() and missing else str(root),
            advice="; ".join(filter(None, [f"unpack {self.archive} in {place.root}", self.hint])),
            estimate=self.estimate,
        )

    def missing(self, place: DataPlace) -> list[str]:
        return [part for part in self.parts if not (place.root / self.name / part).exists()]

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        if self.missing(place):
            reason = f"no {self.name}/ with {', '.join(self.parts)} under {place.root}"
            return Unavailable(reason="; ".join(filter(None, [reason, self.hint])))
        root = place.root / self.name
        files = {f"{self.name}/": tree_checksum(place, self.task, root, self.parts)}
        identity = {"source": "tree", "files": files, "builder": self.builder}
        return prepare(place, self.task, identity, lambda: self.read(root, f"{self.name} tree", files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An official archive under the data root, which must be the published one."""

    task: str
    remote: Remote
    read: Read = field(repr=False)
    builder: int = 1
    estimate: str = ""

    def availability(self, place: DataPlace) -> Availability:
        path = place.root / self.remote.name
        return Availability(
            source=self.remote.name,
            fidelity="official",
            ready=path.is_file(),
            detail=str(path),
            advice=f"put {self.remote.name} ({self.remote.bytes:,} bytes) in {place.root}",
            estimate=self.estimate,
        )

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        path = place.root / self.remote.name
        if not path.is_file():
            return Unavailable(reason=f"no {self.remote.name} in {place.root}")
        digest = file_checksum(place, self.task, path)
        if digest != self.remote.sha256:
            raise DataError(
                f"{path} is damaged: expected {self.remote.bytes:,} bytes with SHA-256 {self.remote.sha256}, got "
                f"{path.stat().st_size:,} bytes with {digest}; delete it, then `attnbench data get {self.task}`"
            )
        return self.from_archive(path, place)

    def identity(self) -> dict[str, object]:
        return {"source": "archive", "files": {self.remote.name: self.remote.sha256}, "builder": self.builder}

    def from_archive(self, path: Path, place: DataPlace) -> Prepared:
        files = {self.remote.name: self.remote.sha256}
        return prepare(place, self.task, self.identity(), lambda: self.read(path, self.remote.name, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """An official archive, downloaded; what was prepared from it serves on when it is deleted."""

    archive: Archive

    def availability(self, place: DataPlace) -> Availability:
        remote = self.archive.remote
        path = downloaded(remote, place)
        return Availability(
            source=f"download of {remote.name}",
            fidelity="official",
            ready=path.is_file() or self.is_prepared(place),
            detail=str(path) if path.is_file() else remote.urls[0],
            advice=f"attnbench data get {self.archive.task}",
            estimate=f"{remote.bytes / 1e6:.0f} MB to download, then {self.archive.estimate}",
        )

    def is_prepared(self, place: DataPlace) -> bool:
        return is_complete(prepared_folder(place, self.archive.task, self.archive.identity()))

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        remote = self.archive.remote
        path = downloaded(remote, place)
        if not (path.is_file() or self.is_prepared(place)):
            if place.offline:
                return Unavailable(reason=f"no download of {remote.name}, and --offline forbids one")
            try:
                fetch(remote, place)
            except Unreachable as error:
                return Unavailable(reason=str(error))
        return self.archive.from_archive(path, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class TFDS:
    """A TensorFlow Datasets set that is prepared as array_record or parquet already; read without TensorFlow.

    `dataset`: name, or name/configuration. TFDS itself never downloads here: offline it would retry for minutes.
    `needs`: what preparing the set takes besides TFDS.
    """

    task: str
    dataset: str
    read: Read = field(repr=False)
    builder: int = 1
    needs: str = ""
    estimate: str = ""

    def availability(self, place: DataPlace) -> Availability:
        folder = self.folder(place)
        return Availability(
            source=f"TFDS {self.dataset}",
            fidelity="official",
            ready=folder is not None and importlib.util.find_spec("tensorflow_datasets") is not None,
            detail=str(folder) if folder else "not prepared as array_record or parquet",
            advice=f"pip install 'attnbench[tfds]', then prepare {self.dataset} with file_format='array_record'"
            + (f" (that needs {self.needs})" if self.needs else ""),
            estimate=self.estimate,
        )

    def folder(self, place: DataPlace) -> Path | None:
        """The newest prepared version whose records read without TensorFlow."""
        for root in tfds_roots(place):
            for info in sorted(root.glob(f"{self.dataset}/*/dataset_info.json"), reverse=True):
                if json.loads(info.read_text(encoding="utf-8")).get("fileFormat") in ("array_record", "parquet"):
                    return info.parent
        return None

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        folder = self.folder(place)
        if folder is None or not self.availability(place).ready:
            return Unavailable(reason=f"no TFDS {self.dataset} prepared as array_record, or no extra `tfds`")
        records = [path for path in sorted(folder.iterdir()) if "-train." in path.name or "-test." in path.name]
        files = {path.name: file_checksum(place, self.task, path) for path in records}
        identity = {"source": "tfds", "files": files, "builder": self.builder}
        return prepare(place, self.task, identity, lambda: self.read(folder, f"TFDS {self.dataset}", files))


def tfds_roots(place: DataPlace) -> list[Path]:
    """Where TFDS sets are looked for: TFDS_DATA_DIR, else the data root and TFDS's own default."""
    named = os.environ.get("TFDS_DATA_DIR")
    return [Path(named).expanduser()] if named else [place.root, Path.home() / "tensorflow_datasets"]
