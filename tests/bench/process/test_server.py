"""Children are forked from a server with torch imported, and are as sound as processes that start by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.machine import describe
from attnbench.bench.plan.fingerprint import digest_of_cell
from attnbench.bench.process import child as children
from attnbench.bench.process.child import Child, encode_order
from attnbench.bench.run.events import CellFinished, decode
from attnbench.bench.run.executors.run_job import Waiting, environment_of, run_job, wait_for
from attnbench.tasks.contract import DataPlace


def said(folder: Path, code: str, environment: dict[str, str] | None = None) -> Any:
    """What `code` in a child assigns to `found`."""
    path = folder / "script.py"
    text = "import json, os, torch\n" + textwrap.dedent(code) + "\nchannel.write(json.dumps(found).encode() + b'\\n')"
    path.write_text(text, encoding="utf-8")
    with Child(str(path), environment) as child:
        line = child.receive(60.0)
        assert line is not None, child.death
        return json.loads(line)


@pytest.mark.slow
def test_the_server_has_nothing_that_a_fork_breaks(tmp_path: Path) -> None:
    """No thread, no GPU, no plugin, and no look at those that are declared; all children have the same server."""
    code = """
    import psutil
    from attnbench.bench.core.registry import TASKS, VARIANTS
    server = psutil.Process().parent().parent()
    found = {
        "server": server.pid, "threads": server.num_threads(), "cuda": torch.cuda.is_initialized(),
        "read": [each.noun for each in (TASKS, VARIANTS) if "_found" in each.__dict__],
    }
    """
    first, second = (said(tmp_path, code, {"OPENBLAS_NUM_THREADS": "1"}) for _ in range(2))
    assert first == second
    assert (first["threads"], first["cuda"], first["read"]) == (1, False, [])


@pytest.mark.slow
def test_importing_a_worker_asks_for_no_gpu() -> None:
    """Whatever asks the driver of a GPU before a fork spoils the GPU for every child."""
    code = """
import torch
asked = []
for name in ("init", "_lazy_init", "is_available", "device_count", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, lambda *given, name=name: asked.append(name))
import attnbench.bench.run.worker, attnbench.bench.process.ask
assert not asked, asked
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_a_child_computes_with_the_threads_that_it_asks_for(tmp_path: Path) -> None:
    code = """
    torch.set_num_threads(2)
    product = torch.ones(600, 600) @ torch.ones(600, 600)
    found = [torch.get_num_threads(), float(product.sum()), len(os.listdir("/proc/self/task")) >= 2]
    """
    assert said(tmp_path, code) == [2, 600.0**3, True]


def test_variables_that_are_read_at_import_get_a_server_of_their_own(tmp_path: Path) -> None:
    found = {threads: said(tmp_path, "found = torch.get_num_threads()", {"OMP_NUM_THREADS": threads})
             for threads in ("1", "2")}  # fmt: skip
    assert found == {"1": 1, "2": 2}
    # those of attnbench are read where they are needed
    code = "found = [os.getppid(), os.environ.get('ATTNBENCH_TEST')]"
    assert [said(tmp_path, code, {"ATTNBENCH_TEST": value})[1] for value in ("a", "b")] == ["a", "b"]
    assert said(tmp_path, code)[1] is None


def test_a_child_runs_in_the_folder_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert said(tmp_path, "found = os.getcwd()") == str(tmp_path / name)


def test_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    code = "import psutil; found = psutil.Process().parent().parent().pid"
    first = said(tmp_path, code)
    server = psutil.Process(first)
    server.kill()
    server.wait(10.0)
    assert said(tmp_path, code) != first


def test_a_server_that_cannot_import_says_why(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this machine')", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with Child("attnbench.bench.run.worker", {"PYTHONPATH": path}) as child:
        assert child.receive(60.0) is None
    assert "no torch for this machine" in child.death


def test_a_child_that_its_server_has_not_forked_yet_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_ENDING_SECONDS", 60.0)
    # variables of its own, so that another server starts, which is stopped as long as it imports
    child = Child(str(tmp_path / "none.py"), {"OWN_SERVER": "1"})
    server = child._server.process
    server.send_signal(signal.SIGSTOP)
    ending = threading.Thread(target=child.end, daemon=True)
    ending.start()
    ending.join(20.0)
    server.send_signal(signal.SIGCONT)
    assert not ending.is_alive()


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
import time
from attnbench.bench.process.child import Child
from attnbench.bench.process.servers import _SERVERS
child = Child({str(tmp_path / "none.py")!r})
print(*(server.process.pid for server in _SERVERS.values()), flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        # it is still importing
        parent.kill()
    ends = time.monotonic() + 10.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < ends:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


@pytest.mark.slow
def test_records_are_equal_to_those_of_a_process_that_starts_by_itself(
    place: DataPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, but for clocks and memory: training with dropout, random features and its baseline."""
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
    cells = tuple(
        Cell(variant=Spec(variant), task=Spec("recall"), preset=Spec("smoke"), lane=lane)
        for variant, lane in (("performer", "train"), ("majority", "baseline"))
    )
    job = Job(
        id="b", cells=cells, digests={one.key: digest_of_cell(one, None, "cpu") for one in cells},
        device="cpu", results=tmp_path / "forked",
        data_dir=place.root, offline=True, threads=1,
    )  # fmt: skip
    forked = []
    for event in run_job(job, describe(torch.device("cpu"))):
        if isinstance(event, Waiting):
            wait_for([event])
        elif isinstance(event, CellFinished):
            forked.append(event.record)
    code = (
        "import sys; from attnbench.bench.run.worker import main; sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], input=encode_order(job), capture_output=True, check=True,
        env={**os.environ, **environment_of(job.threads, job.gpu)},
    )  # fmt: skip
    events = [decode(line) for line in ran.stdout.split(b"\n") if line.startswith(b"{")]
    alone = [event.record for event in events if isinstance(event, CellFinished)]
    assert [_numbers(record) for record in forked] == [_numbers(record) for record in alone]
    assert len(forked) == 2


def _numbers(record: Any) -> Any:
    clocks = ("train_seconds", "data_share")
    measured = [each for each in record.measurements if each.name not in clocks and "bytes" not in each.name]
    kept = {name: each for name, each in record.artifacts.items() if name != "curve"}
    return record.cell, record.outcome, record.setting, measured, kept, record.implementation
