"""Store: records as JSON lines and larger outputs as files, in one folder, that a kill at any moment cannot damage.

root/records/MACHINE.jsonl    one Record per line, only ever appended
root/records/arrivals.txt     the order in which Records of several machines came, see `record_files.py`
root/artifacts/HASH.SUFFIX    curves, predictions, maps; named by their content
root/artifacts/LABEL.zip      many of them in one file, see `packs.py`
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..core.cell import Cell
from ..core.decode import brief
from ..core.errors import StoreError
from ..core.files import made_folder, open_regular, read_regular, replacing
from ..core.record import Outcome, Record
from . import record_files
from .packs import Member, is_pack_name, members_of, pack_name, pack_names, parts_of, read_member, write_pack
from .record_files import RecordFile, in_order_of_arrival, log_arrival, read_log
from .rows import disturbance

LOCAL = Path("results/local")
"""The default folder of runs; `results/` itself holds the committed Records."""

MOST_ARTIFACT_BYTES = 64 * 2**20

MOST_NOTICES = 3
"""The most notices of bad lines in one file; the others are counted."""

_MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_SUFFIX = re.compile(r"(\.[a-z0-9]{1,12}){1,2}")
_ARTIFACT = re.compile(r"[0-9a-f]{24}" + _SUFFIX.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place where a run measures and where its Records count: one machine, or the nodes that an executor chooses.

    `machine_id`: of the one machine; empty for nodes, which are not known before they have run. `on_gpu`: whether their
    GPUs are asked for. `threads`: of timings.
    """

    machine_id: str
    executor: str = "local"
    on_gpu: bool = False
    threads: int

    @property
    def name(self) -> str:
        """The same for all that a later run may ask whether it has been done."""
        return self.machine_id or f"{self.executor} {'gpu' if self.on_gpu else 'cpu'}"

    def counts(self, record: Record) -> bool:
        """True if a Record of one of its cells answers here.

        Speeds answer at the same number of threads alone. Of nodes, any that the executor chose counts, and what was
        trained by this code counts from whatever machine; what failed on another machine may succeed here.
        """
        is_timing = record.cell.lane == "time"
        if is_timing and record.machine.threads != self.threads:
            return False
        if self.machine_id:
            return record.machine.id == self.machine_id
        if bool(record.machine.accelerators) != self.on_gpu:
            return False
        return record.executor == self.executor or (not is_timing and record.outcome is Outcome.OK)


class Store:
    """The results in `root`. Several processes may append at once; `on_warning` gets a sentence for each bad line."""

    def __init__(self, root: Path, on_warning: Callable[[str], None] = print):
        self.root = Path(root)
        self._artifacts = self.root / "artifacts"
        self._on_warning = on_warning
        self._warnings: set[str] = set()
        self._parsed: dict[str, RecordFile] = {}
        self._lines: dict[str, tuple[int, set[bytes]]] = {}
        self._packs: set[str] = set()
        self._packs_of: dict[str, list[tuple[str, Member]]] = {}

    def prepare(self) -> None:
        """Try to write in the folders, before anything is measured. Raises StoreError where that fails.

        No folder is left behind that was not there: a run that is refused after this has left no trace.
        """
        made: list[Path] = []
        try:
            for name in (record_files.FOLDER, "artifacts", "checkpoints"):
                if (self.root / name).is_symlink():
                    raise StoreError(f"{self.root / name} is a link, which is not followed; link {self.root} itself")
            for folder in (self.root / record_files.FOLDER, self._artifacts):
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

    def append(self, record: Record, line: bytes | None = None, *, unless: Callable[[], bool] | None = None) -> bool:
        """Add one line, and return once it is on disk. `line`: that of the Record, where it came as one.

        With `unless`, nothing is added where that is true or where this very line is stored, as of a Record that came
        on two ways: asking and adding are one step, whatever other processes do. Returns whether the line was added.
        Raises StoreError where it cannot be; the file is then as it was and the line is kept in the temporary folder.
        """
        if not _MACHINE.fullmatch(record.machine.id):
            raise StoreError(f"expected a machine id of letters, digits, '.', '_', '-', got {record.machine.id!r}")
        name, line = f"{record.machine.id}.jsonl", line or record.to_line()
        try:
            with made_folder(self.root / record_files.FOLDER) as folder:
                if unless is not None:
                    # until the folder is closed
                    fcntl.flock(folder, fcntl.LOCK_EX)
                    # only what was added since the last call is read, and nothing is parsed
                    end, known = self._lines.get(name, (0, set()))
                    with suppress(FileNotFoundError), open_regular(name, folder=folder, follow=False) as file:
                        file.seek(end)
                        for each in iter(file.readline, b""):
                            if each.endswith(b"\n"):
                                known.add(hashlib.sha256(each).digest())
                                end += len(each)
                    self._lines[name] = end, known
                    if hashlib.sha256(line).digest() in known or unless():
                        return False
                torn = record_files.append_line(folder, name, line)
        except OSError as error:
            raise StoreError(_advice(self.root, error) + _rescue(name, line)) from error
        if torn:
            self.warn(f"{self.root / record_files.FOLDER}: {torn}")
        return True

    def records(self) -> Iterator[Record]:
        """Every readable Record in the order of arrival, see `record_files.py`.

        Lines and files that cannot be read are passed over, and `on_warning` is told of them.
        """
        try:
            with record_files.opened(self.root, record_files.FOLDER) as folder:
                files = [self._read(folder, name) for name in record_files.names_in(folder)]
                log = read_log(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(_unreadable(self.root, error)) from error
        yield from (arrived.record for arrived in in_order_of_arrival(files, log))

    def log_arrival(self) -> None:
        """Log that all Records which are here now came before what comes later."""
        try:
            with record_files.opened(self.root, record_files.FOLDER) as folder:
                log_arrival(folder, [self._read(folder, name) for name in record_files.names_in(folder)])
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(_advice(self.root, error)) from error

    def finished(self, cell: Cell, digest: str, site: Site, *, retry: bool = False) -> Record | None:
        """The last Record of this cell, by this code, that counts at `site`; None where it is still to be run.

        Every outcome is final, since most failures would only repeat; with `retry` only `ok` is, on undisturbed cores.
        """
        try:
            with record_files.opened(self.root, record_files.FOLDER) as folder:
                names = [f"{site.machine_id}.jsonl"] if site.machine_id else record_files.names_in(folder)
                found = [self._read(folder, name).by_cell.get((cell.key, digest), ()) for name in names]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(_unreadable(self.root, error)) from error
        same = [record for each in found for record in each if site.counts(record)]
        if not site.machine_id:
            same.sort(key=lambda record: record.started)
        final = [each for each in same if not retry or (each.outcome is Outcome.OK and not disturbance(each))]
        return final[-1] if final else None

    def checkpoint(self, cell: Cell, digest: str) -> Path:
        """The path of a Cell's training state; other code or other data never resumes it."""
        return self.root / "checkpoints" / f"{cell.key}-{digest}.pt"

    def put_artifact(self, data: bytes, suffix: str) -> str:
        """Keep `data` under a name made of its hash and `suffix` (such as `.json`), and return the name."""
        if not _SUFFIX.fullmatch(suffix):
            raise StoreError(f"expected a suffix such as '.json', got {suffix!r}")
        name = hashlib.sha256(data).hexdigest()[:24] + suffix
        with self._writing(name) as file:
            file.write(data)
        return name

    @contextmanager
    def _writing(self, name: str) -> Iterator[BinaryIO]:
        """A file to write, that gets its name among the artifacts once it is whole and on disk."""
        try:
            with replacing(self._artifacts / name) as file:
                yield file
        except OSError as error:
            raise StoreError(_advice(self.root, error)) from error

    def artifact(self, name: str) -> bytes:
        """The content of that file, or of the member of a pack that has its name.

        Raises StoreError for a file that is missing, no regular file or longer than MOST_ARTIFACT_BYTES, and for a name
        that `put_artifact` never gives.
        """
        if not is_artifact_name(name):
            raise StoreError(f"{brief(repr(name))} is not the name of an artifact: expected 24 hexadecimal digits")
        try:
            with record_files.opened(self.root, "artifacts") as folder:
                try:
                    return read_regular(name, MOST_ARTIFACT_BYTES, folder=folder, follow=False)
                except FileNotFoundError:
                    found = self._packed(folder, name)
                    if found is None:
                        raise
                    return found
        except FileNotFoundError:
            raise StoreError(
                f"artifact {name} is missing from {self._artifacts}; copy that folder with the records"
            ) from None
        except OSError as error:
            raise StoreError(f"artifact {name} cannot be read: {error.strerror or error}") from None

    def _packed(self, folder: int, name: str) -> bytes | None:
        if name not in self._packs_of:
            for pack in pack_names(folder):
                if pack not in self._packs:
                    self._packs.add(pack)
                    try:
                        for member, place in members_of(folder, pack).items():
                            self._packs_of.setdefault(member, []).append((pack, place))
                    except (OSError, StoreError) as error:
                        self.warn(f"{self._artifacts / pack}: {error}")
        packs = self._packs_of.get(name, ())
        contents = (read_member(folder, pack, name, place, MOST_ARTIFACT_BYTES) for pack, place in packs)
        return next((content for content in contents if content is not None), None)

    def pack(self) -> dict[str, int]:
        """Put the single artifacts of the stored Records into packs, one a task, preset and kind.

        Returns how many artifacts each new pack holds. The single files go once their pack is on disk and was read
        again. Files that no Record names stay.
        """
        groups: dict[str, dict[str, int]] = {}
        packed: set[str] = set()
        for record in self.records():
            for kind, name in record.artifacts.items():
                path = self._artifacts / name
                if is_artifact_name(name) and name not in packed and path.is_file() and not path.is_symlink():
                    packed.add(name)
                    label = f"{record.cell.task.name}-{record.cell.preset.name}-{kind}"
                    groups.setdefault(label, {})[name] = path.stat().st_size
        made = {}
        for label, members in ((each, part) for each in sorted(groups) for part in parts_of(groups[each])):
            pack = pack_name(label, members)
            with self._writing(pack) as file:
                write_pack(file, members, self.artifact)
            with record_files.opened(self.root, "artifacts") as folder:
                places = members_of(folder, pack)
                for name in members:
                    if read_member(folder, pack, name, places[name], MOST_ARTIFACT_BYTES) is None:
                        raise StoreError(f"{self._artifacts / name} does not have the content that its name says")
                for name in members:
                    os.unlink(name, dir_fd=folder)
            made[pack] = len(members)
        return made

    def _read(self, folder: int, name: str) -> RecordFile:
        self._parsed[name] = found = record_files.read_file(folder, name, self._parsed.get(name))
        if not found.bad_lines:
            return found
        place = f"{self.root / record_files.FOLDER / record_files.spelt(name)}"
        for bad in found.bad_lines[:MOST_NOTICES]:
            self.warn(
                f"{place}, line {bad.number} was skipped: {bad.reason}" if bad.number else f"{place}: {bad.reason}"
            )
        if len(found.bad_lines) > MOST_NOTICES:
            self.warn(f"{place}: {len(found.bad_lines) - MOST_NOTICES:,} more lines were skipped")
        return found

    def warn(self, text: str) -> None:
        """Pass `text` to `on_warning`, once."""
        if text not in self._warnings:
            self._warnings.add(text)
            self._on_warning(text)


def _rescue(name: str, line: bytes) -> str:
    with suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="attnbench-rescued-"))
        (folder / name).write_bytes(line)
        return f". The record just made was kept in {folder / name}: append that line to the file by hand"
    return ". The record just made could not be kept anywhere"


def is_artifact_name(name: str) -> bool:
    """True if `put_artifact` could have given it: 24 hexadecimal digits and a suffix."""
    return _ARTIFACT.fullmatch(name) is not None


def is_given_name(name: str) -> bool:
    """True if a file among the artifacts is one, a pack, or one of the two that a kill has left unfinished."""
    whole = re.sub(r"\.[0-9a-f]{16}\.unfinished\Z", "", name)
    return is_artifact_name(whole) or is_pack_name(whole)


def _unreadable(root: Path, error: OSError) -> str:
    return f"cannot read {root / record_files.FOLDER}: {error.strerror or error}; it must be a folder, and no link"


def _advice(root: Path, error: OSError) -> str:
    return f"cannot write to {root}: {error.strerror or error}; {way_out(error)} --results FOLDER"


def way_out(error: OSError) -> str:
    """The cure of a write that failed, up to the folder: more space is none where a folder is read-only."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free space, or name another folder with" if is_full else "make it writable, or name another folder with"
