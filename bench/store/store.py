"""Store: records as JSON lines and larger outputs as files, in one folder, that a kill at any moment cannot damage.

root/records/MACHINE.jsonl    one Record per line, only ever appended
root/artifacts/HASH.SUFFIX    curves, predictions, maps; named by their content
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from ..core.cell import Cell
from ..core.errors import StoreError
from ..core.record import Outcome, Record

LOCAL = Path("results/local")
"""The default folder of runs; `results/` itself holds the committed Records."""

UNREADABLE = (
    StoreError, OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""The errors of reading arrays from an artifact that is missing, torn, or made to do harm."""

_MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_SUFFIX = re.compile(r"(\.[a-z0-9]{1,12}){1,2}")
_ARTIFACT = re.compile(r"[0-9a-f]{24}" + _SUFFIX.pattern)


class Store:
    """The results in `root`. Several processes may append at once; `on_warning` is told of each line set aside."""

    def __init__(self, root: Path, on_warning: Callable[[str], None] = print):
        self.root = Path(root)
        self._on_warning = on_warning
        self._warnings: set[str] = set()
        self._parsed: dict[Path, _ParsedFile] = {}

    def prepare(self) -> None:
        """Tries to write in the folders; raises StoreError, before anything is measured.

        No folder is left behind that was not there: a run that is refused after this has left no trace.
        """
        made: list[Path] = []
        try:
            for folder in (self._records, self._artifacts):
                made += [path for path in (folder, *folder.parents) if not path.exists()]
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder) as probe:
                    probe.write(b"\0" * 4096)
        except OSError as error:
            raise StoreError(_advice(self.root, error)) from error
        finally:
            for path in sorted(made, key=lambda path: len(path.parts), reverse=True):
                with suppress(OSError):
                    path.rmdir()

    def append(self, record: Record) -> None:
        """Adds one line and returns once it is on disk.

        Raises StoreError where it cannot be; the file is then as it was and the line is kept in the temporary folder.
        """
        if not _MACHINE.fullmatch(record.machine.id):
            raise StoreError(f"expected a machine id of letters, digits, '.', '_', '-', got {record.machine.id!r}")
        path = self._records / f"{record.machine.id}.jsonl"
        line = json.dumps(record.to_json(), separators=(",", ":")).encode() + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(path):
                self._set_torn_line_aside(path)
                _write(path, line)
        except OSError as error:
            raise StoreError(_advice(self.root, error) + _rescue(path.name, line)) from error

    def records(self) -> Iterator[Record]:
        """Every readable Record, file by file in the order of their names, each in the order of appending."""
        for path in sorted(self._records.glob("*.jsonl")):
            yield from self._read(path).records

    def finished(self, cell: Cell, digest: str, machine_id: str, *, retry: bool = False) -> Record | None:
        """The last Record of this cell, by this code, on this machine; None where it is still to be run.

        Every outcome is final, since most failures would only repeat; with `retry` only `ok` is.
        """
        same = self._read(self._records / f"{machine_id}.jsonl").by_cell.get((cell.key, digest), [])
        final = [record for record in same if record.outcome is Outcome.OK or not retry]
        return final[-1] if final else None

    def checkpoint(self, cell: Cell, digest: str) -> Path:
        """Where a Cell's training state belongs; other code or other data never resumes it."""
        return self.root / "checkpoints" / f"{cell.key}-{digest}.pt"

    def put_artifact(self, data: bytes, suffix: str) -> str:
        """Keeps `data` under a name made of its hash and `suffix` (such as `.json`); returns the name."""
        if not _SUFFIX.fullmatch(suffix):
            raise StoreError(f"expected a suffix such as '.json', got {suffix!r}")
        name = hashlib.sha256(data).hexdigest()[:24] + suffix
        target = self._artifacts / name
        try:
            self._artifacts.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._artifacts, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(_advice(self.root, error)) from error
        return name

    def artifact(self, name: str) -> Path:
        """The file of that name; raises StoreError for a missing file or a name that `put_artifact` never gives."""
        path = self._artifacts / name
        if not _ARTIFACT.fullmatch(name):
            raise StoreError(f"{name!r} is not the name of an artifact: expected 24 hexadecimal digits and a suffix")
        if not path.is_file():
            raise StoreError(f"artifact {name} is missing from {self._artifacts}; copy that folder with the records")
        return path

    @property
    def _records(self) -> Path:
        return self.root / "records"

    @property
    def _artifacts(self) -> Path:
        return self.root / "artifacts"

    def _read(self, path: Path) -> _ParsedFile:
        try:
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if path not in self._parsed or self._parsed[path].stamp != stamp:
                self._parsed[path] = _ParsedFile(stamp, self._parse(path))
        except (FileNotFoundError, NotADirectoryError):
            return _ParsedFile((0, 0), [])
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
        return self._parsed[path]

    def _parse(self, path: Path) -> list[Record]:
        *lines, tail = path.read_bytes().split(b"\n")
        if tail:
            # another process may still be writing this line, which only the holder of the lock can know
            with suppress(OSError), _lock(path):
                self._set_torn_line_aside(path)
                *lines, tail = path.read_bytes().split(b"\n")
        if tail:
            self.warn(f"{path}: the last line is incomplete and was not read")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                if line.strip():
                    records.append(Record.from_line(line))
            except StoreError as error:
                self.warn(f"{path}, line {number} was skipped: {error}")
        return records

    def _set_torn_line_aside(self, path: Path) -> None:
        if not path.exists():
            return
        with path.open("r+b") as file:
            start, tail = _tail(file.fileno())
            if not tail:
                return
            with suppress(StoreError):
                Record.from_line(tail)
                # the line is whole, and only its end was lost
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                return
            torn = path.with_name(path.name + ".torn")
            with torn.open("ab") as aside:
                aside.write(tail + b"\n")
            file.truncate(start)
        self.warn(f"{path}: the last line was torn by an interruption; it was set aside in {torn.name}")

    def warn(self, text: str) -> None:
        """Passes `text` to `on_warning`, once."""
        if text not in self._warnings:
            self._warnings.add(text)
            self._on_warning(text)


@dataclass(frozen=True)
class _ParsedFile:
    """The records of one file as it was at `stamp` (its size and time)."""

    stamp: tuple[int, int]
    records: list[Record]

    @cached_property
    def by_cell(self) -> dict[tuple[str, str], list[Record]]:
        """The records by key and digest."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            found.setdefault((record.key, record.digest), []).append(record)
        return found


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))


def _tail(descriptor: int) -> tuple[int, bytes]:
    """Where the last line begins that has no end, and its bytes; empty for a file whose last line is whole."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    start, tail = end, b""
    while start > 0 and b"\n" not in tail:
        start = max(0, start - 65536)
        tail = os.pread(descriptor, end - start, start)
    tail = tail.rpartition(b"\n")[2]
    return end - len(tail), tail


def _write(path: Path, line: bytes) -> None:
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _rescue(name: str, line: bytes) -> str:
    with suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="attnbench-rescued-"))
        (folder / name).write_bytes(line)
        return f". The record just made was kept in {folder / name}: append that line to the file by hand"
    return ". The record just made could not be kept anywhere"


def _advice(root: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"cannot write to {root}: {reason}; free space, or name a writable folder with --results FOLDER"
