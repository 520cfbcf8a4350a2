"""Checksums of originals: computed once, remembered until the file changes, verified on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...bench.core.decode import read_json
from ...bench.core.errors import StoreError
from ...bench.core.files import open_regular
from ...bench.core.hashing import content_hash
from ..contract import DataPlace
from .prepared import file_digest, read_errors, write_whole

LARGEST_NOTE = 10_000_000
"""Bytes of a note of a checksum; the note of Pathfinder names some hundred folders."""


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


def file_checksum(place: DataPlace, task: str, path: Path) -> str:
    """SHA-256 of a file. It is read again only when its size or modification time changes."""
    with read_errors(path.name):
        return _remembered(place, task, path, (), lambda: file_digest(path))


def tree_checksum(place: DataPlace, task: str, root: Path, folders: Sequence[str]) -> str:
    """SHA-256 over (path, length, bytes) of these files, and the files in these folders, of `root`, sorted by path.

    They are read again only when a folder's modification time changes: 50,000 files take longer to look at than to
    train on. `verify_originals` finds a file that was edited in place.
    """
    with read_errors(root.name):
        return _remembered(place, task, root, tuple(folders), lambda: _tree_digest(place, root, folders))


def verify_originals(place: DataPlace, task: str | None = None) -> Iterator[ChecksumResult]:
    """Read every original again whose checksum is remembered. A checksum that no longer holds is forgotten."""
    for path in sorted((place.cache / "checksums").glob("*.json")):
        note = _read_note(path)
        if note is None:
            # nothing is lost: the next use of the original writes another note
            _forget(path)
            continue
        if task is not None and note.task != task:
            continue
        root = Path(note.root)
        # a note without folders belongs to a file
        folders = [root / folder for folder in note.folders]
        if not all(each.exists() for each in folders or [root]):
            state = "gone"
        else:
            try:
                now = _tree_digest(place, root, note.folders) if folders else file_digest(root)
            except OSError:
                # a folder or a pipe has taken its place
                now = ""
            state = "ok" if now == note.sha256 else "changed"
        if state != "ok":
            _forget(path)
        yield ChecksumResult(task=note.task, path=note.root, state=state, sha256=note.sha256)


def _remembered(place: DataPlace, task: str, root: Path, folders: tuple[str, ...], compute: Callable[[], str]) -> str:
    stats = [path.stat() for path in ([root / folder for folder in folders] or [root])]
    states = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
    name = content_hash({"task": task, "root": str(root), "folders": list(folders)})
    path = place.cache / "checksums" / f"{name}.json"
    # times are in nanoseconds, since a file may be rewritten within a second at the same size
    known = _read_note(path)
    if known is not None and known.states == states:
        return known.sha256
    digest = compute()
    note = ChecksumNote(task=task, root=str(root), folders=folders, states=states, sha256=digest)
    write_whole(path, msgspec.json.encode(note))
    return digest


def _read_note(path: Path) -> ChecksumNote | None:
    try:
        return read_json(ChecksumNote, path, LARGEST_NOTE, "a checksum note")
    except (OSError, StoreError):
        return None


def _forget(note: Path) -> None:
    with suppress(OSError):
        note.unlink()


def _tree_digest(place: DataPlace, root: Path, folders: Sequence[str]) -> str:
    digest = hashlib.sha256()
    paths = sorted(
        (path.relative_to(root).as_posix(), path)
        for folder in folders
        for path in ((root / folder).iterdir() if (root / folder).is_dir() else [root / folder])
    )
    for done, (name, path) in enumerate(paths):
        with open_regular(path) as file:
            content = file.read()
        # the length keeps apart what the end of one file and the start of the next could share
        digest.update(name.encode() + b"\0" + str(len(content)).encode() + b"\0" + content)
        if done % 1000 == 0 or done + 1 == len(paths):
            place.progress(f"reading {root.name}", done + 1, len(paths))
    return digest.hexdigest()
