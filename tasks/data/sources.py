"""Sources: the ways to original data that several tasks share, and checksums of the originals.

A source downloads nothing unless it must. A checksum is computed once, remembered until the original changes, and
verified on demand.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...bench.core.decode import read_json
from ...bench.core.errors import StoreError
from ...bench.core.hashing import content_hash
from ..contract import Availability, DataError, DataPlace, Provenance
from .download import RemoteFile, Unreachable, failure, fetch
from .prepared import MANIFEST, PreparedData, file_digest, pack, prepare, prepared_folder, read_errors, write_whole

METADATA = "metadata.json"
VERSION = "1.0.0"
"""The version of every export, as TFDS counts versions."""

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
            fidelity="official" if missing else "official or surrogate",  # known once it is read
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
        files = {f"{self.name}/": checksum(place, self.task, root, self.parts)}
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
        digest = checksum(place, self.task, path)
        if digest != self.remote.sha256:
            raise DataError(
                f"{path} is damaged: expected {self.remote.bytes:,} bytes with SHA-256 {self.remote.sha256}, got "
                f"{path.stat().st_size:,} bytes with {digest}; delete it, then `attnbench data get {self.task}`"
            )
        return self.from_archive(path, place)

    def is_prepared(self, place: DataPlace) -> bool:
        """True if the cache has what this archive becomes, so that the archive itself is not needed."""
        identity = {"source": "archive", "files": {self.remote.name: self.remote.sha256}, "builder": self.builder}
        return (prepared_folder(place, self.task, identity) / MANIFEST).is_file()

    def from_archive(self, path: Path, place: DataPlace) -> PreparedData:
        return self.prepare_from(place, "archive", path, self.remote.name, {self.remote.name: self.remote.sha256})


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSource:
    """An official archive, downloaded. It can be deleted once the data are prepared."""

    archive: ArchiveSource

    def availability(self, place: DataPlace) -> Availability:
        remote = self.archive.remote
        path = place.download(remote.name)
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
        path = place.download(remote.name)
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
                    info = read_json(DatasetInfo, path, "a description of TFDS")
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
        files = {path.name: checksum(place, self.task, path) for path in records}
        return self.prepare_from(place, "tfds", folder, f"TFDS {self.dataset}", files)


def tfds_roots(place: DataPlace) -> list[Path]:
    """Folders that may hold TFDS sets: TFDS_DATA_DIR, else the data root and TFDS's own default."""
    named = os.environ.get("TFDS_DATA_DIR")
    return [Path(named).expanduser()] if named else [place.root, Path.home() / "tensorflow_datasets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMetadata:
    """The content of metadata.json, which `export` writes beside the records."""

    task: str
    columns: tuple[str, ...]
    provenance: Provenance
    repeated: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """Prepared data of a task that `export` wrote, in TFDS_DATA_DIR, the data root or ~/tensorflow_datasets.

    `fits`: whether an export is wanted, given the source that its provenance names.
    """

    task: str
    fits: Callable[[str], bool] = field(default=lambda source: True, repr=False)

    def availability(self, place: DataPlace) -> Availability:
        folder = self.folder(place)
        metadata = export_metadata(folder) if folder else None
        installed = importlib.util.find_spec("tensorflow_datasets") is not None
        return Availability(
            source=f"TFDS {dataset_of(self.task)}",
            fidelity=metadata.provenance.fidelity if metadata else "official",
            ready=folder is not None and installed,
            detail=str(folder) if folder else "no export of another machine's data",
            advice="pip install 'attnbench[tfds]'" if folder else f"attnbench data export {self.task} --tfds DIR there",
            estimate="some 10 s for 100,000 examples" if folder else "",
        )

    def folder(self, place: DataPlace) -> Path | None:
        """The first export that fits, by name."""
        for root in tfds_roots(place):
            for path in sorted(root.glob(f"{dataset_of(self.task)}/*/{VERSION}/{METADATA}")):
                found = export_metadata(path.parent)
                if found and found.task == self.task and self.fits(found.provenance.source):
                    return path.parent
        return None

    def prepared(self, place: DataPlace) -> PreparedData | None:
        folder = self.folder(place)
        if folder is None or not self.availability(place).ready:
            return None
        # only the records: TFDS's own metadata files hold dates and versions
        records = sorted(folder.glob("*.array_record-*"))
        files = {path.name: checksum(place, self.task, path) for path in records}
        return prepare(place, self.task, {"source": "record set", "files": files}, lambda: read_export(folder, place))

    def read(self, place: DataPlace) -> PreparedData | None:
        """The data as a build of the same data would yield it; None where no export can be read."""
        folder = self.folder(place)
        return read_export(folder, place) if folder is not None and self.availability(place).ready else None


def dataset_of(task: str) -> str:
    """The name of a task's TFDS set. TFDS allows no hyphen in a name."""
    return task.replace("-", "_")


def read_export(folder: Path, place: DataPlace) -> PreparedData:
    """The data of an export, as a build of the same data would yield it."""
    metadata = export_metadata(folder)
    assert metadata is not None  # `folder` was found by it
    columns = metadata.columns
    builder = import_tfds().builder_from_directory(str(folder))
    splits = {}
    for name in builder.info.splits:
        parts, labels = [], []
        examples = builder.as_data_source(name)
        for index, example in enumerate(examples):
            parts += [example[column] for column in columns]
            labels.append(int(example["label"]))
            if index % 1_000 == 0 or index + 1 == len(examples):
                place.progress(f"reading {folder.parent.parent.name}", index + 1, len(examples))
        splits[name] = pack(parts, labels, towers=len(columns))
    return PreparedData(splits=splits, provenance=metadata.provenance, repeated=metadata.repeated)


def export_metadata(folder: Path) -> ExportMetadata | None:
    """The metadata of an export; None for a set that others made."""
    try:
        return read_json(ExportMetadata, folder / METADATA, "metadata of an export")
    except (OSError, StoreError):
        return None


def import_tfds() -> Any:
    """The library; raises DataError where it is not installed."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"TFDS exports need TFDS ({error}); pip install 'attnbench[tfds]' (no TensorFlow)") from error
    return tfds


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumNote:
    """A remembered checksum, one JSON file of the cache. `states`: modification time in ns and size of each path."""

    task: str
    root: str
    folders: tuple[str, ...]
    states: tuple[tuple[int, int], ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumResult:
    """The state of an original that was read again: 'ok', 'changed' or 'gone'."""

    task: str
    path: str
    state: str
    sha256: str


def checksum(place: DataPlace, task: str, root: Path, parts: Sequence[str] = ()) -> str:
    """SHA-256 of the file `root`; with `parts`, over these files and the files in these folders of the folder `root`.

    It is remembered until a size or a modification time changes. Of a folder only its own count, since 50,000 files
    take longer to look at than to train on; `verify_originals` finds a file that was edited in place.
    """
    with read_errors(root.name):
        stats = [path.stat() for path in [root / part for part in parts] or [root]]
        # times are in nanoseconds, since a file may be rewritten within a second at the same size
        states = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
        name = content_hash({"task": task, "root": str(root), "folders": list(parts)})
        path = place.cache / "checksums" / f"{name}.json"
        known = _read_note(path)
        if known is not None and known.states == states:
            return known.sha256
        digest = _digest(place, root, parts)
    note = ChecksumNote(task=task, root=str(root), folders=tuple(parts), states=states, sha256=digest)
    write_whole(path, msgspec.json.encode(note))
    return digest


def verify_originals(place: DataPlace, task: str | None = None) -> Iterator[ChecksumResult]:
    """Read every original again whose checksum is remembered. A checksum that no longer holds is forgotten."""
    for path in sorted((place.cache / "checksums").glob("*.json")):
        note = _read_note(path)
        if note is not None and task not in (None, note.task):
            continue
        state = ""
        if note is not None:
            root = Path(note.root)
            # a note without folders belongs to a file
            if all(each.exists() for each in [root / folder for folder in note.folders] or [root]):
                now = ""
                # a folder or a pipe may have taken its place
                with suppress(OSError):
                    now = _digest(place, root, note.folders)
                state = "ok" if now == note.sha256 else "changed"
            else:
                state = "gone"
            yield ChecksumResult(task=note.task, path=note.root, state=state, sha256=note.sha256)
        if state != "ok":
            # nothing is lost: the next use of the original writes another note
            with suppress(OSError):
                path.unlink()


def _read_note(path: Path) -> ChecksumNote | None:
    try:
        return read_json(ChecksumNote, path, "a checksum note")
    except (OSError, StoreError):
        return None


def _digest(place: DataPlace, root: Path, parts: Sequence[str]) -> str:
    """The digest of one file, or over (path, length, bytes) of all files of `parts`, sorted by path."""
    if not parts:
        return file_digest(root)
    digest = hashlib.sha256()
    paths = sorted(
        (path.relative_to(root).as_posix(), path)
        for part in parts
        for path in ((root / part).iterdir() if (root / part).is_dir() else [root / part])
    )
    for done, (name, path) in enumerate(paths):
        content = path.read_bytes()
        # the length keeps apart what the end of one file and the start of the next could share
        digest.update(name.encode() + b"\0" + str(len(content)).encode() + b"\0" + content)
        if done % 1000 == 0 or done + 1 == len(paths):
            place.progress(f"reading {root.name}", done + 1, len(paths))
    return digest.hexdigest()
