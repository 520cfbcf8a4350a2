"""Two commands on one folder: they may train a cell twice, and never store it twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.bench.store.store import Store

VARIANTS = ["linear", "rela", "softmax"]
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.mark.slow  # two commands in full
def test_two_commands_on_one_folder_double_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(notes))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")])))
    (notes / "linear.does").write_text("sleep", encoding="ascii")
    command = [
        sys.executable,
        str(SUPPORT / "fake_blocks.py"),
        str(tmp_path / "r"),
        "softmax,rela,linear",
        "local",
        "1",
    ]
    drivers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    ends = time.monotonic() + 120.0
    # both train the first cell at the same time
    while _starts(notes, "linear") != 2:
        assert time.monotonic() < ends and all(driver.poll() is None for driver in drivers)
        time.sleep(0.05)
    (notes / "linear.go").touch()
    for driver in drivers:
        said, _ = driver.communicate(timeout=120.0)
        assert driver.returncode == 0, said
    assert sorted(record.cell.variant.name for record in Store(tmp_path / "r").records()) == [
        "linear",
        "rela",
        "softmax",
    ]
    assert not (tmp_path / "r" / "jobs").exists()


def _starts(notes: Path, variant: str) -> int:
    path = notes / f"{variant}.starts"
    return path.read_text(encoding="ascii").count("\n") if path.exists() else 0
