"""Checksums of originals: computed once, remembered until the file changes, verified on demand."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bench.core.hashing import content_hash
from ..contract import DataPlace
from .prepared import file_digest, writing


def file_checksum(place: DataPlace, task: str, path: Path) -> str:
    """SHA-256 of a file, read again only when its size or modification time changes."""
    return _remembered(place, {"task": task, "root": str(path), "folders": []}, [path], lambda: file_digest(path))


def tree_checksum(place: DataPlace, task: str, root: Path, folders: Sequence[str]) -> str:
    """SHA-256 over (path, length, bytes) of these files, and the files in these folders, of `root`, sorted by path.

    Read again only when a folder's modification time changes: a file edited in place is found by `verify_originals`.
    """
    note = {"task": task, "root": str(root), "folders": list(folders)}
    return _remembered(place, note, [root / folder for folder in folders], lambda: _tree_digest(place, root, folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of something that was checked: 'ok', 'changed' or 'gone'."""

    task: str
    path: str
    state: str
    sha256: str


def verify_originals(place: DataPlace, task: str | None = None) -> Iterator[Verdict]:
    """Reads every original again whose checksum is remembered; a checksum that no longer holds is forgotten."""
    for path in sorted((place.cache / "checksums").glob("*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            root = Path(note["root"])
        except (ValueError, KeyError):
            path.unlink()  # a note that does not read is no loss: the next use makes another
            continue
        if task is not None and note["task"] != task:
            continue
        folders = [root / folder for folder in note["folders"]]
        if not all(each.exists() for each in folders or [root]):
            state = "gone"
        else:
            now = _tree_digest(place, root, note["folders"]) if folders else file_digest(root)
            state = "ok" if now == note["sha256"] else "changed"
        if state != "ok":
            path.unlink()
        yield Verdict(task=note["task"], path=note["root"], state=state, sha256=note["sha256"])


def _remembered(place: DataPlace, note: dict[str, Any], paths: Sequence[Path], compute: Callable[[], str]) -> str:
    states = [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    path = place.cache / "checksums" / f"{content_hash(note)}.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["states"] == [list(state) for state in states]:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    digest = compute()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(note | {"states": states, "sha256": digest}, file)
        Path(file.name).replace(path)
    return digest


def _tree_digest(place: DataPlace, root: Path, folders: Sequence[str]) -> str:
    digest = hashlib.sha256()
    paths = sorted(
        (path.relative_to(root).as_posix(), path)
        for folder in folders
        for path in ((root / folder).iterdir() if (root / folder).is_dir() else [root / folder])
    )
    for done, (name, path) in enumerate(paths):
        content = path.read_bytes()
        digest.update(name.encode() + b"\0" + str(len(content)).encode() + b"\0" + content)
        if done % 1000 == 0 or done + 1 == len(paths):
            place.progress(f"reading {root.name}", done + 1, len(paths))
    return digest.hexdigest()
