"""Sources: the ways to original data that several tasks share. A source downloads nothing unless it must."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...bench.core.decode import read_json
from ...bench.core.errors import StoreError
from ..contract import Availability, DataError, DataPlace
from .checksums import file_checksum, tree_checksum
from .download import RemoteFile, Unreachable, downloaded, failure, fetch
from .prepared import PreparedData, is_complete, prepare, prepared_folder

LARGEST_INFO = 10_000_000
"""Bytes of a dataset_info.json."""

Read = Callable[[Path, str, dict[str, str]], PreparedData]
"""(path of the original, name of the source, checksums by file) → prepared data. The reader decides the fidelity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialSource:
    """An official form of a task's data. `builder`: raised when `read` yields other arrays; `estimate`: time, disk."""

    task: str
    read: Read = field(repr=False)
    builder: int = 1
    estimate: str = ""

    def prepare_from(
        self, place: DataPlace, kind: str, original: Path, name: str, files: dict[str, str]
    ) -> PreparedData:
        """Data of an original that is here, prepared on first use. The checksums decide the folder in the cache."""
        identity = {"source": kind, "files": files, "builder": self.builder}
        return prepare(place, self.task, identity, lambda: self.read(original, name, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource(OfficialSource):
    """An unpacked official folder under the data root. `parts`: folders of files, or files, that make it complete.

    `hint`: where the archive can be had.
    """

    name: str
    parts: tuple[str, ...]
    archive: str
    hint: str = ""

    def availability(self, place: DataPlace) -> Availability:
        root = place.root / self.name
        missing = self.missing(place)
        return Availability(
            source=f"{self.name}/ tree",
            fidelity="official",
            ready=not missing,
            detail=f"{root} lacks {', '.join(missing)}" if missing else str(root),
            advice="; ".join(filter(None, [f"unpack {self.archive} in {place.root}", self.hint])),
            estimate=self.estimate,
        )

    def missing(self, place: DataPlace) -> list[str]:
        return [part for part in self.parts if not (place.root / self.name / part).exists()]

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if self.missing(place):
            return None
        root = place.root / self.name
        # no checksum of a folder is published, so the reader decides the fidelity by the content
        files = {f"{self.name}/": tree_checksum(place, self.task, root, self.parts)}
        return self.prepare_from(place, "tree", root, f"{self.name} tree", files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSource(OfficialSource):
    """An official archive under the data root. Its SHA-256 must be the published one."""

    remote: RemoteFile

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

    def prepared(self, place: DataPlace) -> PreparedData | None:
        path = place.root / self.remote.name
        if not path.is_file():
            return None
        # a damaged archive is an error and no reason to try the next source, which could be another text
        digest = file_checksum(place, self.task, path)
        if digest != self.remote.sha256:
            raise DataError(
                f"{path} is damaged: expected {self.remote.bytes:,} bytes with SHA-256 {self.remote.sha256}, got "
                f"{path.stat().st_size:,} bytes with {digest}; delete it, then `attnbench data get {self.task}`"
            )
        return self.from_archive(path, place)

    def is_prepared(self, place: DataPlace) -> bool:
        """Whether the cache has what this archive becomes, so that the archive itself is not needed."""
        identity = {"source": "archive", "files": {self.remote.name: self.remote.sha256}, "builder": self.builder}
        return is_complete(prepared_folder(place, self.task, identity))

    def from_archive(self, path: Path, place: DataPlace) -> PreparedData:
        return self.prepare_from(place, "archive", path, self.remote.name, {self.remote.name: self.remote.sha256})


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSource:
    """An official archive, downloaded. It can be deleted once the data are prepared."""

    archive: ArchiveSource

    def availability(self, place: DataPlace) -> Availability:
        remote = self.archive.remote
        path = downloaded(remote, place)
        return Availability(
            source=f"download of {remote.name}",
            fidelity="official",
            ready=path.is_file() or self.archive.is_prepared(place),
            detail=str(path) if path.is_file() else failure(remote, place) or remote.urls[0],
            advice=f"attnbench data get {self.archive.task}",
            estimate=f"{remote.bytes / 1e6:.0f} MB to download, then {self.archive.estimate}",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        remote = self.archive.remote
        path = downloaded(remote, place)
        # prepared data need no archive, so it may be deleted, and --offline still works
        if not (path.is_file() or self.archive.is_prepared(place)):
            if place.offline:
                return None
            try:
                fetch(remote, place)
            except Unreachable:
                # `availability` shows the reason, which is remembered
                return None
        return self.archive.from_archive(path, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """The one field of a TFDS set's dataset_info.json that decides whether it reads without TensorFlow."""

    fileFormat: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TfdsSource(OfficialSource):
    """A TensorFlow Datasets set that is already prepared as array_record or parquet. It is read without TensorFlow.

    `dataset`: name, or name/configuration; `needs`: what preparing the set takes besides TFDS. TFDS itself downloads
    nothing here: without a network it would retry for minutes.
    """

    dataset: str
    needs: str = ""

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
            for path in sorted(root.glob(f"{self.dataset}/*/dataset_info.json"), reverse=True):
                try:
                    info = read_json(DatasetInfo, path, LARGEST_INFO, "a description of TFDS")
                except (OSError, StoreError) as error:
                    raise DataError(f"{path} does not read ({error}); prepare {self.dataset} again") from error
                # the default of TFDS, tfrecord, needs TensorFlow
                if info.fileFormat in ("array_record", "parquet"):
                    return path.parent
        return None

    def prepared(self, place: DataPlace) -> PreparedData | None:
        folder = self.folder(place)
        if folder is None or not self.availability(place).ready:
            return None
        records = [path for path in sorted(folder.iterdir()) if "-train." in path.name or "-test." in path.name]
        files = {path.name: file_checksum(place, self.task, path) for path in records}
        return self.prepare_from(place, "tfds", folder, f"TFDS {self.dataset}", files)


def tfds_roots(place: DataPlace) -> list[Path]:
    """Folders that may hold TFDS sets: TFDS_DATA_DIR, else the data root and TFDS's own default."""
    named = os.environ.get("TFDS_DATA_DIR")
    return [Path(named).expanduser()] if named else [place.root, Path.home() / "tensorflow_datasets"]
