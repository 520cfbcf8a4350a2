"""Prepared data: token ids, starts and labels as memory-mapped arrays, in a folder named by their origin's hash."""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from filelock import FileLock

from ...bench.core.decode import read_json
from ...bench.core.errors import StoreError
from ...bench.core.files import replacing
from ...bench.core.hashing import content_hash
from ..contract import DataError, DataPlace, Ids, Provenance, Split, Whole

FORMAT: Final = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Splits by name, with their provenance.

    `repeated`: split → indices of the examples whose content occurs a second time, in that split or in another.
    `folder`: where the arrays lie; None for data that was built and not yet written.
    """

    splits: dict[str, Split]
    provenance: Provenance
    repeated: dict[str, tuple[int, ...]] = field(default_factory=dict)
    folder: Path | None = None

    def with_note(self, note: str) -> PreparedData:
        """The same data with one more note for the board."""
        return replace(self, provenance=replace(self.provenance, notes=(*self.provenance.notes, note)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFile:
    """Checksum and size of one .npy file."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of manifest.json. `name`: of the task; `splits`: towers of each; `arrays`: by file name."""

    format: Literal[1]
    name: str
    provenance: Provenance
    splits: dict[str, int]
    repeated: dict[str, tuple[int, ...]]
    arrays: dict[str, ArrayFile]


def pack(sequences: Iterable[Ids], labels: Iterable[int], towers: int = 1) -> Split:
    """A Split of these sequences, laid end to end. With two towers, two sequences share a label."""
    parts = list(sequences)
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)
    return Split(tokens=tokens, starts=starts, labels=np.fromiter(labels, dtype=np.int64), towers=towers)


def prepared_folder(place: DataPlace, name: str, identity: Mapping[str, Any]) -> Path:
    """The folder for data of this identity: source, checksums of the originals, version of the builder."""
    return place.cache / "prepared" / f"{name}-{content_hash({'format': FORMAT, **identity})}"


def prepare(
    place: DataPlace, name: str, identity: Mapping[str, Any], build: Callable[[], PreparedData]
) -> PreparedData:
    """Return the data of `identity`. The first call builds it with `build`; later calls memory-map it.

    Processes that want the same data wait for one builder. A build that is killed leaves nothing that looks complete.
    Raises DataError where the cache cannot be written.
    """
    folder = prepared_folder(place, name, identity)
    with suppress(DataError):
        return open_prepared(folder)
    with write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            try:
                # another process may have built it while this one waited for the lock
                return open_prepared(folder)
            except DataError as error:
                # a folder without a manifest, which is written last, is no whole build
                if (folder / MANIFEST).is_file():
                    damaged = folder.with_name(f".damaged-{folder.name}")
                    place.notice(f"{error}; it was set aside as {damaged.name}")
                    # what was set aside before goes
                    shutil.rmtree(damaged, ignore_errors=True)
                    folder.rename(damaged)
            _build(place, folder, name, build)
    return open_prepared(folder)


def _build(place: DataPlace, folder: Path, name: str, build: Callable[[], PreparedData]) -> None:
    place.notice(f"preparing {name} in {folder}")
    with read_errors(name):
        built = build()
    for split_name, split in built.splits.items():
        # a header alone would pass for data, train on nothing and divide by zero
        if not len(split):
            raise DataError(f"expected examples in the {split_name} split of {name}, got none")
    _write(folder, name, built)


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn an error of reading originals into a DataError that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename or name}: {error.strerror or error}; put the original there again"
        ) from error
    # a file of another kind than its name says
    except (ValueError, LookupError, EOFError, zlib.error) as error:
        raise DataError(f"the original of {name} does not read: {type(error).__name__}: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of the cache so that it is there in full or not at all. Raises DataError where it cannot."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an error of writing `path` into a DataError that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free some space there, or set ATTNBENCH_CACHE to a "
            "folder that can be written"
        ) from error


def open_prepared(folder: Path) -> PreparedData:
    """Memory-map the data of a folder. Raises DataError where a file is missing or has another size.

    The manifest is written last, so a folder that has one was built to its end.
    """
    manifest = read_manifest(folder)
    # Tokens are compared by size on each opening, since that is quick; `damaged` compares all checksums. Starts and
    # labels are small, and a wrong one reads like a right one.
    for name, entry in manifest.arrays.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry.bytes or (not name.endswith(".tokens.npy") and file_digest(path) != entry.sha256):
            got = f"{size} bytes" if size != entry.bytes else "another content of that size"
            raise DataError(f"expected {path} of {entry.bytes} bytes, got {got}; delete {folder} to prepare it again")
    try:
        splits = {
            name: Split(
                tokens=np.load(folder / f"{name}.tokens.npy", mmap_mode="r"),
                starts=np.load(folder / f"{name}.starts.npy", mmap_mode="r"),
                labels=np.load(folder / f"{name}.labels.npy", mmap_mode="r"),
                towers=towers,
            )
            for name, towers in manifest.splits.items()
        }
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise DataError(f"{folder} does not read ({error}); delete it to prepare it again") from error
    for name, split in splits.items():
        if not len(split) or int(split.starts[-1]) != len(split.tokens):
            raise DataError(f"expected whole examples in the {name} split of {folder}; delete it to prepare it again")
    return PreparedData(splits=splits, provenance=manifest.provenance, repeated=manifest.repeated, folder=folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete folder. Raises DataError where it is no manifest of this format."""
    path = folder / MANIFEST
    try:
        return read_json(Manifest, path, "a manifest")
    except (OSError, StoreError) as error:
        raise DataError(
            f"expected format {FORMAT} in {path}, and it does not read ({error}); delete {folder} to prepare it again"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedData:
    """One complete folder of prepared data. `examples`: split → number of examples."""

    task: str
    folder: Path
    bytes: int
    examples: dict[str, int]
    provenance: Provenance


def stored(place: DataPlace, task: str | None = None) -> list[CachedData]:
    """The complete folders of the cache, of one task or of all, ordered by task."""
    found = []
    for path in sorted((place.cache / "prepared").glob(f"[!.]*/{MANIFEST}")):
        try:
            manifest = read_manifest(path.parent)
            if task not in (None, manifest.name):
                continue
            prepared = open_prepared(path.parent)
        except DataError as error:
            place.notice(str(error))
        else:
            found.append(
                CachedData(
                    task=manifest.name,
                    folder=path.parent,
                    bytes=sum(entry.bytes for entry in manifest.arrays.values()),
                    examples={name: len(split) for name, split in prepared.splits.items()},
                    provenance=prepared.provenance,
                )
            )
    return found


def damaged(folder: Path) -> list[str]:
    """The arrays of a complete folder that are missing or whose SHA-256 is not the manifest's."""
    return [
        name
        for name, entry in read_manifest(folder).arrays.items()
        if not (folder / name).is_file() or file_digest(folder / name) != entry.sha256
    ]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: Path, name: str, prepared: PreparedData) -> None:
    # the lock makes this process the only builder, so a partial folder was left by a build that was killed
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    arrays: dict[str, ArrayFile] = {}
    for split_name, split in prepared.splits.items():
        columns: dict[str, Ids | Whole] = {"tokens": split.tokens, "starts": split.starts, "labels": split.labels}
        for column, values in columns.items():
            path = partial / f"{split_name}.{column}.npy"
            with replacing(path) as file:
                np.save(file, values, allow_pickle=False)
            arrays[path.name] = ArrayFile(sha256=file_digest(path), bytes=path.stat().st_size)
    manifest = Manifest(
        format=FORMAT,
        name=name,
        provenance=prepared.provenance,
        splits={split_name: split.towers for split_name, split in prepared.splits.items()},
        repeated=prepared.repeated,
        arrays=arrays,
    )
    # the manifest marks the folder as complete, so it comes after the arrays are on the disk
    write_whole(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    partial.replace(folder)
