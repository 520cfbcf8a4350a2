"""Faults in the middle of work: kills of a merge, a folder that becomes read-only, other versions, little memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands_under_test import Command
from seeds import seed
from tally import Extent, Tally

from attnbench.bench.core.files import read_regular
from attnbench.bench.store.store import Store
from attnbench.bench.wings.sharing.validate import validate_records

RESULTS = Path(__file__).parent.parent.parent / "results"
MACHINE = "eb2a68423486"
RUN = ("run", "--variants", "softmax", "--task", "recall", "--lanes", "train", "--threads", "1", "--offline")


def started(folder: Path, *words: str, **variables: str) -> Command:
    return Command(*words, folder=folder, variables={"OMP_NUM_THREADS": "1"} | variables)


def wait_for(pattern: str, folder: Path, command: Command) -> None:
    while not list(folder.glob(pattern)):
        assert command.process.poll() is None, command.ended(1.0)
        time.sleep(0.02)


@pytest.mark.parametrize("extent", [pytest.param("all", marks=pytest.mark.soak)], indirect=True)
def test_merges(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """kills during a merge: the same merge ends with every Record once, and nothing half-written counts."""
    theirs, ours, drawn = tmp_path / "theirs", tmp_path / "ours", random.Random(seed())
    (theirs / "records").mkdir(parents=True)
    shutil.copytree(RESULTS / "artifacts", theirs / "artifacts")
    shutil.copy(RESULTS / "records" / f"{MACHINE}.jsonl", theirs / "records")
    wanted = {record.to_line() for record in Store(theirs).records()}
    for number in range(4):
        shutil.rmtree(ours, ignore_errors=True)
        for _ in range(3):
            command = started(tmp_path, "merge", str(theirs), "--results", str(ours))
            time.sleep(drawn.uniform(2, 12))
            command.send(signal.SIGKILL)
            command.ended(30.0)
        ended = started(tmp_path, "merge", str(theirs), "--results", str(ours)).ended(300.0)
        found = [record.to_line() for record in Store(ours).records()]
        errors = validate_records(ours).errors
        problem = ended.problem(0) or (None if sorted(found) == sorted(wanted) else "other Records")
        tally.check(f"merge {number}", problem or (f"{errors} errors" if errors else None))
    tally.verdict()


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mount"), reason="needs the right to mount a folder")
def test_a_folder_that_becomes_read_only_ends_the_run_in_one_line_and_it_goes_on_later(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    words = (*RUN, "--preset", "smoke[steps=40]", "--seeds", "3", "--results", str(disk / "r"))
    try:
        command = started(tmp_path, *words)
        wait_for("r/records/*.jsonl", disk, command)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ended = command.ended(300.0)
        assert ended.code == 4 and "Read-only file system" in ended.errors.rstrip("\n").split("\n")[-1]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert started(tmp_path, *words).ended(300.0).code == 0
        records = list(Store(disk / "r").records())
        assert len({record.key for record in records}) == len(records) >= 3
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.soak
def test_another_version_of_the_program_and_another_machine_id_share_a_folder(tmp_path: Path) -> None:
    folder, site = tmp_path / "r", tmp_path / "site"
    words = (*RUN, "--preset", "smoke[steps=4]", "--results", str(folder))
    assert started(tmp_path, *words).ended(300.0).code == 0
    (file,) = (folder / "records").glob("*.jsonl")
    first = file.read_bytes().split(b"\n")[0]
    newer = [json.dumps(json.loads(first) | {"schema": 2}), json.dumps(json.loads(first) | {"shiny": 1})]
    with file.open("a") as lines:
        lines.write("\n".join(newer) + "\n")
    before = file.read_bytes()
    # the lines of a newer version are named, and stay to the byte
    ended = started(tmp_path, *words).ended(300.0)
    assert ended.code == 0 and ended.errors.count("line") >= 2 and read_regular(file, 2**24) == before
    # a machine whose processors change is another machine: it measures for itself, and takes nothing away
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.cpu_count = lambda: 7\n")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    assert started(tmp_path, *words, PYTHONPATH=path).ended(300.0).code == 0
    assert len(list((folder / "records").glob("*.jsonl"))) == 2 and file.read_bytes() == before


@pytest.mark.soak
@pytest.mark.parametrize("kilobytes", [1_200_000, 2_000_000, 3_000_000])
def test_a_limit_of_memory_is_an_outcome_or_one_line(tmp_path: Path, kilobytes: int) -> None:
    words = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "-", sys.executable, "-m", "attnbench", *RUN]
    words += ["--preset", "smoke[steps=4]", "--results", str(tmp_path / "r")]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode in (0, 71, 4) and "Traceback" not in done.stderr, done.stderr
    assert all(r.outcome in ("ok", "out_of_memory", "crashed") for r in Store(tmp_path / "r").records())
