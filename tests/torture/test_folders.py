"""Results folders of strangers, through every reader: nothing written, executed, lost or left hanging."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command_lines import answer
from hostile_folders import (
    ARRAYS,
    CURVES,
    LINES,
    VALUES,
    HostileFolder,
    changed_lines,
    fields,
    hostile_folders,
    sound_records,
    write_sound,
)
from limits import SECONDS, OutOfTime, limited
from tally import Extent, Tally

import attnbench
from attnbench.bench.api import boards as api
from attnbench.bench.api import pages
from attnbench.bench.core.errors import AttnbenchError, StoreError
from attnbench.bench.core.harness import harness_name
from attnbench.bench.core.record import Record
from attnbench.bench.store.artifacts import MOST_EXAMPLES, curve_of, results_of
from attnbench.bench.store.packs import DamagedArtifact
from attnbench.bench.store.store import Store
from attnbench.bench.wings.sharing.validate import validate_records

pytest.importorskip("altair", reason="the extra dashboard is not installed")

from attnbench.dashboards import csv_json, html, latex, markdown, terminal

MOST_GROWTH_BYTES = 2**31
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")

_executed: list[str] = []


def _watch(event: str, arguments: Any) -> None:
    if event in FORBIDDEN:
        _executed.append(event)


sys.addaudithook(_watch)

PARTS = 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "results"
    write_sound(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's own files, beside the current folder."""
    made = tmp_path / "home"
    (made / "work").mkdir(parents=True)
    (made / ".bashrc").write_text("of the reader\nno end of line")
    monkeypatch.setenv("HOME", str(made))
    # a plan locks the prepared data that it looks for, in the reader's own cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(made / "work")
    # the names of this processor and of this checkout come from `uname` and `git`, which are asked once
    platform.processor()
    harness_name()
    # merging waits for the disk after every line, which is not the matter here
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return made


# in parts, since all in one are the longest test by far, for which the other process would wait
@pytest.mark.parametrize("part", range(PARTS))
def test_folders(extent: Extent, tally: Tally, sound: Path, home: Path, tmp_path: Path, part: int) -> None:
    """hostile folders: no reader writes, executes, crashes or hangs, and no sound Record is lost."""
    for case in extent.of(hostile_folders()[part::PARTS], sample=1):
        tally.check(case.name, problem_of(case, sound, home, tmp_path / "case"))
    tally.verdict()


def test_fields(extent: Extent) -> None:
    """Every field with every value is read or refused with a short line."""
    refused = 0
    for record, path in extent.of(list(fields()), sample=12):
        for line in changed_lines(record, path, VALUES):
            try:
                # what is read can be written, hashed and printed
                str(Record.from_line(line).to_line())
            except StoreError as error:
                refused += 1
                assert len(str(error)) < 600 and str(error).isprintable(), (path, line[:80])
    assert refused > 100


def test_a_hostile_line_is_refused_or_read() -> None:
    for content in LINES.values():
        for line in content().split(b"\n")[:100]:
            with suppress(StoreError):
                Record.from_line(line)


@pytest.mark.parametrize("key", ["correct", "statistics"])
def test_hostile_arrays_are_damaged_or_read(key: str) -> None:
    for name in ARRAYS.keys() - {"a zip bomb"}:
        with suppress(DamagedArtifact):
            kept = results_of(ARRAYS[name](key)).values
            assert kept.dtype in ("uint8", "float64") and 0 < len(kept) <= MOST_EXAMPLES, name


def test_a_hostile_curve_is_damaged_or_read() -> None:
    for name, curve in CURVES.items():
        with suppress(DamagedArtifact):
            for point in curve_of(curve()):
                assert type(point["step"]) is int, name
                assert all(isinstance(value, int | float | None) for value in point.values()), name


def problem_of(case: HostileFolder, sound: Path, home: Path, place: Path) -> str | None:
    """What went wrong in any reader of the folder; None where all held."""
    folder = place / "theirs"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, folder)
    case.make(folder)
    before = state_of(home, folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _executed.clear()
    for name, read in readers(case, folder, place / "ours").items():
        problem = _problem(read)
        if problem is None and _executed:
            problem = f"executed: {_executed}"
        if problem is None and (changed := state_of(home, folder) ^ before):
            problem = f"wrote: {sorted(changed)[:3]}"
        if problem:
            return f"{name}: {problem}"
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
    return f"took {growth:,} bytes of memory" if growth > MOST_GROWTH_BYTES else None


def state_of(*roots: Path) -> set[tuple[str, int, int, int]]:
    """Every file below, with mode, size and time of its last change; links are not followed."""
    found = set()
    for root in roots:
        for path in (root, *root.rglob("*")):
            status = path.lstat()
            found.add((os.fspath(path), status.st_mode, status.st_size, status.st_mtime_ns))
    return found


def readers(case: HostileFolder, folder: Path, ours: Path) -> dict[str, Callable[[], object]]:
    """Every way in which a folder is read; `merge` writes to `ours`, which is then read too."""

    def read_all() -> None:
        notices: list[str] = []
        found = {(record.key, record.started) for record in Store(folder, notices.append).records()}
        for notice in notices:
            _one_line(notice)
        assert not case.notice or any(case.notice in notice for notice in notices), f"it was told {notices[:3]}"
        lost = {(record.key, record.started) for record in sound_records()} - found
        assert not (case.keeps_records and lost), f"{len(lost)} sound Records were lost"

    def render() -> None:
        boards = api.boards(folder, notice=_one_line)
        for write in (terminal.render, markdown.render, csv_json.to_csv, csv_json.to_json, latex.to_latex):
            write(boards).encode()

    def merged() -> None:
        ended = answer(["merge", str(folder), "--results", str(ours)])
        assert ended.code != 70, ended.errors
        api.boards(ours, notice=_one_line)

    def validated() -> None:
        for finding in validate_records(folder).findings:
            str(finding).encode()

    def page() -> None:
        reports = pages.reports(folder, notice=_one_line)
        # drawing takes most of the time, and depends little on what is drawn
        if zlib.crc32(case.name.encode()) % 8 == 0:
            html.render(reports).encode()

    def plan() -> None:
        # most of the time goes into the count of work
        if zlib.crc32(case.name.encode()) % 4 == 0:
            heard = Mock(notice=_one_line)
            attnbench.plan("softmax,rela", "lra-listops,sweep", preset="smoke", results=folder, progress=heard)

    def pandas() -> None:
        api.records(folder, notice=_one_line).to_pandas()

    return {
        "records": read_all,
        "validate": validated,
        "boards": render,
        "lengths": lambda: api.boards(folder, lengths=True, notice=_one_line),
        "dashboard": page,
        "compare": lambda: pages.compare("rela", results=folder, notice=_one_line),
        "choose": lambda: attnbench.choose(512, results=folder, notice=_one_line),
        "against": lambda: pages.changes(folder, folder, notice=_one_line),
        "plan": plan,
        "status": lambda: str(attnbench.status(folder)).encode(),
        "pandas": pandas,
        "merge": merged,
    }


def _one_line(text: str) -> None:
    assert len(text) < 2000, f"a notice of {len(text):,} characters"
    text.encode()


def _problem(read: Callable[[], object]) -> str | None:
    try:
        with limited():
            read()
    except AttnbenchError as error:
        # an answer, if it is one line
        return None if len(str(error)) < 2000 and "\n" not in str(error) else f"a long error: {str(error)[:200]!r}"
    except OutOfTime:
        return f"over {SECONDS} s"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:150]} ({Path(frame.filename).name}:{frame.lineno})"
    return None
