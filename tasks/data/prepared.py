"""Prepared data: token ids, starts and labels as memory-mapped arrays, in a folder named by what made them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ...bench.core.errors import DataError
from ...bench.core.hashing import content_hash
from ...bench.core.record import Provenance
from ..contract import DataPlace, Ids, Split, Whole

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Splits by name with where they came from.

    `repeated`: split → indices of the examples whose content occurs elsewhere, in that split or in another.
    """

    splits: dict[str, Split]
    provenance: Provenance
    repeated: dict[str, tuple[int, ...]] = field(default_factory=dict)
    folder: Path | None = None


def pack(sequences: Iterable[Ids], labels: Iterable[int], towers: int = 1) -> Split:
    """A Split of these sequences, laid end to end."""
    parts = list(sequences)
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)
    return Split(tokens=tokens, starts=starts, labels=np.fromiter(labels, dtype=np.int64), towers=towers)


def prepared_folder(place: DataPlace, name: str, identity: Mapping[str, Any]) -> Path:
    """Where data of this identity (source, checksums, builder version) is or will be."""
    return place.cache / "prepared" / f"{name}-{content_hash({'format': FORMAT, **identity})}"


def prepare(place: DataPlace, name: str, identity: Mapping[str, Any], build: Callable[[], Prepared]) -> Prepared:
    """The prepared data of `identity`, built once by `build` and memory-mapped ever after.

    Builders in several processes wait for one another; a build that is killed leaves nothing that looks complete.
    Raises DataError where the cache cannot be written.
    """
    folder = prepared_folder(place, name, identity)
    if not is_complete(folder):
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{folder}.lock")
            lock.acquire()
        try:
            if not is_complete(folder):
                place.notice(f"preparing {name} in {folder}")
                built = build()
                with writing(folder):
                    _write(folder, name, built)
        finally:
            lock.release()
    return open_prepared(folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system says when `path` cannot be written into a DataError that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free some space there, or set ATTNBENCH_CACHE to a "
            "folder that can be written"
        ) from error


def is_complete(folder: Path) -> bool:
    """Whether a build ended well: the manifest is written last."""
    return (folder / MANIFEST).is_file()


def open_prepared(folder: Path) -> Prepared:
    """The data of a complete folder, memory-mapped. Raises DataError where a file is missing or has another size."""
    manifest = read_manifest(folder)
    for name, entry in manifest["arrays"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            raise DataError(
                f"expected {path} of {entry['bytes']} bytes, got {size}; delete {folder} to prepare it again"
            )
    splits = {
        name: Split(
            tokens=np.load(folder / f"{name}.tokens.npy", mmap_mode="r"),
            starts=np.load(folder / f"{name}.starts.npy", mmap_mode="r"),
            labels=np.load(folder / f"{name}.labels.npy", mmap_mode="r"),
            towers=towers,
        )
        for name, towers in manifest["splits"].items()
    }
    provenance = manifest["provenance"]
    return Prepared(
        splits=splits,
        provenance=Provenance(**provenance | {"notes": tuple(provenance["notes"])}),
        repeated={name: tuple(indices) for name, indices in manifest["repeated"].items()},
        folder=folder,
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete folder; raises DataError where it does not read."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST} does not read ({error}); delete {folder} to prepare it again") from error
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"expected format {FORMAT} in {folder / MANIFEST}, got {manifest.get('format')!r}; delete {folder}"
        )
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One complete folder of prepared data. `examples`: split → how many."""

    task: str
    folder: Path
    bytes: int
    examples: dict[str, int]
    provenance: Provenance


def stored(place: DataPlace, task: str | None = None) -> list[Stored]:
    """What is prepared in the cache, of one task or of all, ordered by task."""
    found = []
    for path in sorted((place.cache / "prepared").glob(f"[!.]*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        if task in (None, manifest["name"]):
            prepared = open_prepared(path.parent)
            found.append(
                Stored(
                    task=manifest["name"],
                    folder=path.parent,
                    bytes=sum(entry["bytes"] for entry in manifest["arrays"].values()),
                    examples={name: len(split) for name, split in prepared.splits.items()},
                    provenance=prepared.provenance,
                )
            )
    return found


def damaged(folder: Path) -> list[str]:
    """The arrays of a complete folder that are missing or whose SHA-256 is not the manifest's."""
    return [
        name
        for name, entry in read_manifest(folder)["arrays"].items()
        if not (folder / name).is_file() or file_digest(folder / name) != entry["sha256"]
    ]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: Path, name: str, prepared: Prepared) -> None:
    # the lock makes this process the only builder, so a folder of that name is what a killed one left behind
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    arrays: dict[str, dict[str, Any]] = {}
    for split_name, split in prepared.splits.items():
        columns: dict[str, Ids | Whole] = {"tokens": split.tokens, "starts": split.starts, "labels": split.labels}
        for column, values in columns.items():
            path = partial / f"{split_name}.{column}.npy"
            np.save(path, values, allow_pickle=False)
            _sync(path)
            arrays[path.name] = {"sha256": file_digest(path), "bytes": path.stat().st_size}
    manifest = {
        "format": FORMAT,
        "name": name,
        "provenance": asdict(prepared.provenance),
        "splits": {split_name: split.towers for split_name, split in prepared.splits.items()},
        "repeated": {split_name: list(indices) for split_name, indices in prepared.repeated.items()},
        "arrays": arrays,
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(partial / MANIFEST)
    partial.rename(folder)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
