"""A Record of somebody else names code by its place: the commands that run a trained model do not run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_lines import answer

from attnbench.bench.cli.command import LeftToChild
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.store import Store
from attnbench.bench.train.checkpoint import is_own, mark_of
from attnbench.bench.wings.inspect.command import leave_cell_to_child

CODE = "from pathlib import Path\nPath('RAN').touch()\nclass Mine: pass\n"


@pytest.fixture
def theirs(bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder with code beside its Records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    Path("theirs").mkdir()
    Path("theirs/mine.py").write_text(CODE, encoding="utf-8")
    return Store(Path("theirs"))


def named(bench: Callable[..., Any], theirs: Store, variant: str, task: str) -> Record:
    here = bench()
    record = here.add(replace(here.cell("softmax"), variant=Spec.parse(variant), task=Spec.parse(task)))
    theirs.append(record)
    return record


def save(path: Path, mark: object) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save({"training": {"mark": mark}}, path)


CELLS = [
    ("theirs/mine.py:Mine", "lra-text"),
    ("gate+theirs/mine.py:Mine//softmax", "lra-text"),
    ("softmax", "theirs/mine.py:Mine"),
    ("attnbench.bench.core.files:os.abort", "lra-text"),
]


@pytest.mark.parametrize(("variant", "task"), CELLS)
def test_code_that_a_stranger_names_is_not_run(
    bench: Callable[..., Any], theirs: Store, variant: str, task: str
) -> None:
    record = named(bench, theirs, variant, task)
    path = theirs.checkpoint(record.cell, record.digest)
    for mark in (None, "", "0" * 64, 5, mark_of(path.with_name("another"), Path("cache"))):
        if mark is not None:
            save(path, mark)
        with pytest.raises(SelectionError, match="a cell that you trained, got one of somebody else"):
            leave_cell_to_child(theirs, record)
    path.write_bytes(b"x")
    assert not is_own(path, Path("cache")) and not Path("RAN").exists()


def test_code_of_a_cell_that_this_account_trained_runs_in_a_child(bench: Callable[..., Any], theirs: Store) -> None:
    record = named(bench, theirs, "theirs/mine.py:Mine", "lra-text")
    path = theirs.checkpoint(record.cell, record.digest)
    save(path, mark_of(path, Path("cache")))
    with pytest.raises(LeftToChild) as left:
        leave_cell_to_child(theirs, record)
    assert left.value.name == "theirs/mine.py:Mine"
    leave_cell_to_child(theirs, named(bench, theirs, "softmax", "lra-text"))


def test_a_command_refuses_it_with_its_code(bench: Callable[..., Any], theirs: Store) -> None:
    record = named(bench, theirs, "theirs/mine.py:Mine", "lra-text")
    found = answer(f"sample {record.key} --results theirs")
    assert found.code == 2 and "theirs/mine.py:Mine; read that code" in found.errors and not Path("RAN").exists()
