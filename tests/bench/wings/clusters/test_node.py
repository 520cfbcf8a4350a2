"""A node prepares the data of a job before its child starts, once for all jobs that want the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.spec import Spec
from attnbench.bench.process.child import encode_order
from attnbench.bench.run.events import Failed
from attnbench.bench.run.executors.run_job import WorkerError
from attnbench.bench.wings.clusters.job_files import JobFiles
from attnbench.bench.wings.clusters.node import prepare_data


def job(task: str, results: Path, block: str = "0123456789") -> Job:
    cell = Cell(variant=Spec("softmax"), task=Spec(task), preset=Spec("smoke"))
    return Job(id=block, cells=(cell,), digests={}, device="cpu", results=results, data_dir=None,
               offline=True)  # fmt: skip


@pytest.mark.slow
def test_blocks_of_one_node_prepare_their_data_once(tmp_path: Path) -> None:
    script = """
import sys; from pathlib import Path
from attnbench.bench.wings.clusters.node import prepare_data
from attnbench.bench.process.child import decode_order
from attnbench.bench.wings.clusters.job_files import JobFiles
from attnbench.tasks.data import prepared
build, job = prepared._build, decode_order(sys.stdin.buffer.readline())
def counted(*given):
    print("built", flush=True)
    build(*given)
prepared._build = counted
prepare_data(job, JobFiles(job.results))
"""
    environment = {**os.environ, "HOME": str(tmp_path), "ATTNBENCH_CACHE": str(tmp_path / "cache")}
    several = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    for process in several:
        assert process.stdin
        process.stdin.write(encode_order(job("lra-listops", tmp_path)))
        process.stdin.flush()
    said = b"".join(process.communicate()[0] for process in several)
    assert [process.returncode for process in several] == [0, 0]
    assert said.split() == [b"built"]


def test_data_that_is_not_there_is_told_to_the_person_and_is_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ATTNBENCH_DATA", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    files = JobFiles(tmp_path)
    with pytest.raises(WorkerError, match="has no data here") as caught:
        prepare_data(job("enwik8", tmp_path), files)
    (event,) = files.events("0123456789")[0]
    assert isinstance(event, Failed) and event.exit_code == caught.value.exit_code == 3
