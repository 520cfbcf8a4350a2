"""Blocks on this machine: which run at once, on which device, and what a neighbour may not do to them."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Lane
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.executor_settings import ExecutorSettings
from attnbench.bench.run import resources
from attnbench.bench.run.events import CellFinished, Event
from attnbench.bench.run.executors import node
from attnbench.bench.run.executors.block import Cancellation, WorkerError
from attnbench.bench.run.executors.executor import Needs
from attnbench.bench.run.executors.local import LocalExecutor
from attnbench.bench.run.job import Job
from attnbench.bench.run.job_files import JobFiles
from attnbench.bench.run.resources import local_resources

MACHINE = Machine(id="m", system="s", processor="p", cores=2, threads=1, memory_bytes=1)
PATIENCE = 20.0


def job(name: str, *variants: str, lane: Lane = "train") -> Job:
    cells = tuple(
        Cell(variant=Spec(each), task=Spec("t"), preset=Spec("smoke"), lane=lane) for each in variants or (name,)
    )
    digests = {cell.key: "a-b-c" for cell in cells}
    block = name.encode().hex()
    return Job(block=block, cells=cells, digests=digests, sources=digests, device="cpu", results=Path("r"),
               data_dir=None, offline=True)  # fmt: skip


def name_of(block: str) -> str:
    return bytes.fromhex(block).decode()


class Stage:
    """Blocks that end when a test says so, with one Record a Cell."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.errors: dict[str, BaseException] = {}
        self.running: set[str] = set()
        self.seen: list[tuple[str, frozenset[str], str]] = []
        self.changed = threading.Condition()

    def __call__(self, job: Job, machine: Machine, cancellation: Cancellation) -> Iterator[Event]:
        name = name_of(job.block)
        with self.changed:
            self.running.add(name)
            self.seen.append((name, frozenset(self.running), job.gpu))
            self.changed.notify_all()
        gate = self.gates.get(name)
        try:
            while gate is not None and not gate.wait(0.01) and not cancellation.is_wished:
                pass
            if name in self.errors:
                raise self.errors[name]
            for cell in () if cancellation.is_wished else job.cells:
                outcome = self.outcomes[name].pop(0) if self.outcomes.get(name) else Outcome.OK
                yield CellFinished(Record(cell=cell, outcome=outcome, machine=machine, block=job.block, node=job.node))
        finally:
            with self.changed:
                self.running.discard(name)
                self.changed.notify_all()

    def wait_for(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= self.running, PATIENCE), self.running


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage()
    monkeypatch.setattr(node, "run_block", found)
    return found


def executor(tmp_path: Path, *devices: str) -> LocalExecutor:
    return LocalExecutor(MACHINE, JobFiles(tmp_path), devices or ("",))


TRAINS, TIMES = Needs(gpus=0, threads=1), Needs(gpus=0, threads=1, alone=True)
ON_GPU = Needs(gpus=1, threads=1)


def test_one_device_runs_blocks_in_the_order_of_being_submitted(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path)
    for name in ("first", "second"):
        here.submit(job(name, "one", "two"), TRAINS)
    events: list[Event] = []
    counts = [(name_of(block), len(events)) for block in here.finished(events.append)]
    assert counts == [("first", 2), ("second", 4)]
    assert [beside for _, beside, _ in stage.seen] == [{"first"}, {"second"}]
    assert list(here.finished(events.append)) == []


def test_as_many_blocks_run_at_once_as_there_are_devices_each_with_its_own(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "GPU-a", "GPU-b")
    stage.gates = {name: threading.Event() for name in ("one", "two")}
    for name in ("one", "two", "three"):
        here.submit(job(name), ON_GPU)
    ended = []
    for block in _later(here, stage, ("one", "two")):
        ended.append(name_of(block))
    assert sorted(ended) == ["one", "three", "two"]
    by_name = {name: gpu for name, _, gpu in stage.seen}
    assert {by_name["one"], by_name["two"]} == {"GPU-a", "GPU-b"}
    assert max(len(beside) for _, beside, _ in stage.seen) == 2


def _later(here: LocalExecutor, stage: Stage, names: tuple[str, ...], on_event=lambda event: None) -> Iterator[str]:
    """What ends, once all of `names` have been seen at work at the same time."""

    def open_gates() -> None:
        stage.wait_for(*names)
        for gate in stage.gates.values():
            gate.set()

    opener = threading.Thread(target=open_gates)
    opener.start()
    yield from here.finished(on_event)
    opener.join()


def test_a_timing_on_a_processor_never_runs_beside_another_block(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "", "")
    stage.gates = {name: threading.Event() for name in ("a", "b")}
    here.submit(job("a"), TRAINS)
    here.submit(job("b"), TRAINS)
    here.submit(job("time1", lane="time"), TIMES)
    here.submit(job("time2", lane="time"), TIMES)
    here.submit(job("c"), TRAINS)
    assert len(list(_later(here, stage, ("a", "b")))) == 5
    assert all(beside == {name} for name, beside, _ in stage.seen if name.startswith("time"))


def test_a_timing_on_a_gpu_shares_the_machine_and_not_the_device(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "0", "1")
    stage.gates = {name: threading.Event() for name in ("train", "time")}
    here.submit(job("train"), ON_GPU)
    here.submit(job("time", lane="time"), ON_GPU)
    assert len(list(_later(here, stage, ("train", "time")))) == 2
    assert len({gpu for _, _, gpu in stage.seen}) == 2


def test_what_ran_out_of_memory_beside_another_runs_again_alone(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "", "")
    stage.gates = {name: threading.Event() for name in ("a", "b")}
    stage.outcomes = {"a": [Outcome.OUT_OF_MEMORY]}
    here.submit(job("a"), TRAINS)
    here.submit(job("b"), TRAINS)
    events: list[Event] = []
    assert len(list(_later(here, stage, ("a", "b"), events.append))) == 2
    assert [event.record.outcome for event in events if isinstance(event, CellFinished)] == [Outcome.OK, Outcome.OK]
    assert stage.seen[-1][:2] == ("a", {"a"})


def test_out_of_memory_alone_is_an_outcome(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "", "")
    stage.outcomes = {"a": [Outcome.OUT_OF_MEMORY]}
    here.submit(job("a"), TRAINS)
    events: list[Event] = []
    assert len(list(here.finished(events.append))) == 1
    assert [event.record.outcome for event in events if isinstance(event, CellFinished)] == [Outcome.OUT_OF_MEMORY]


def test_a_second_block_waits_while_memory_is_short(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.bench.run.executors.local.LEAST_BYTES", 2**60)
    here = executor(tmp_path, "", "")
    for name in ("a", "b"):
        here.submit(job(name), TRAINS)
    assert len(list(here.finished(lambda event: None))) == 2
    assert all(len(beside) == 1 for _, beside, _ in stage.seen)


def test_a_cancelled_block_gets_no_further_record(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path)
    for name in ("first", "second"):
        here.submit(job(name, "one", "two"), TRAINS)
    here.cancel(job("second").block)
    events: list[Event] = []

    def cancel(event: Event) -> None:
        events.append(event)
        here.cancel(job("first").block)

    assert list(here.finished(cancel)) == [] and len(events) == 1


def test_what_a_person_must_cure_ends_all_that_runs(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "", "")
    stage.gates = {"long": threading.Event()}
    stage.errors = {"bad": WorkerError("no reviews here", 3)}
    here.submit(job("long"), TRAINS)
    here.submit(job("bad"), TRAINS)
    with pytest.raises(WorkerError, match="no reviews here"):
        list(here.finished(lambda event: None))
    assert not stage.running


def test_an_interrupted_run_leaves_nothing_running(tmp_path: Path, stage: Stage) -> None:
    here = executor(tmp_path, "", "")
    stage.gates = {"long": threading.Event()}
    here.submit(job("long"), TRAINS)
    here.submit(job("quick"), TRAINS)

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(here.finished(interrupt))
    assert not stage.running


def test_two_commands_on_one_folder_share_the_work(tmp_path: Path, stage: Stage) -> None:
    files = JobFiles(tmp_path)
    here, other = executor(tmp_path), executor(tmp_path)
    stage.gates = {"a": threading.Event()}
    events: list[list[Event]] = [[], []]

    def work(which: LocalExecutor, told: list[Event]) -> None:
        for block in which.finished(told.append):
            files.end(block, {})

    for each in (here, other):
        each.submit(job("a"), TRAINS)
    threads = [threading.Thread(target=work, args=pair) for pair in zip((here, other), events, strict=True)]
    for thread in threads:
        thread.start()
    stage.wait_for("a")
    stage.gates["a"].set()
    for thread in threads:
        thread.join()
    assert len(stage.seen) == 1 and sorted(map(len, events)) == [0, 1]


def settings(jobs: int | None = None) -> ExecutorSettings:
    return ExecutorSettings(jobs=jobs)


def described(monkeypatch: pytest.MonkeyPatch, *gpus: str) -> list[str]:
    """A machine with these GPUs, as far as its resources go; returns what a person is told."""
    import torch

    machines = [replace(MACHINE, id=f"with-{gpu}", accelerators=(gpu,)) for gpu in gpus]
    monkeypatch.setattr(resources, "choose_device", lambda name: torch.device(name or "cuda"))
    monkeypatch.setattr(resources, "describe_in_child", lambda device, threads: machines[int(device[5:] or 0) :][
        : 1 if ":" in device else None])  # fmt: skip
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(resources.torch, "set_num_threads", lambda count: None)
    return []


def find(tmp_path: Path, told: list[str], jobs: int | None = None, threads: int = 0, device: str | None = None):
    return local_resources(settings(jobs), device, threads, JobFiles(tmp_path), told.append)


def test_all_gpus_of_one_kind_are_used_with_their_share_of_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = described(monkeypatch, "H100", "H100", "A100", "H100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-seven")
    found = find(tmp_path, told)
    assert found.executor._free == ["4", "5", "GPU-seven"]
    assert (found.jobs, found.train_threads, found.time_threads) == (3, 5, 5)
    assert len(told) == 1 and "A100" in told[0]
    # timings key on threads, which therefore do not depend on how many run at once
    assert find(tmp_path, told, jobs=1).time_threads == 5
    assert find(tmp_path, told, jobs=1).site == found.site


def test_more_jobs_than_gpus_become_one_for_each_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a suite made for two cores names two jobs, and runs on one GPU all the same
    told = described(monkeypatch, "H100")
    found = find(tmp_path, told, jobs=2)
    assert (found.jobs, len(found.executor._free)) == (1, 1)
    assert told == ["2 jobs were asked for: each GPU runs one at once, so 1 here"]


def test_on_a_processor_training_shares_the_cores_and_a_timing_has_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(resources.torch, "set_num_threads", lambda count: None)
    one, four = (find(tmp_path, [], jobs=jobs, device="cpu") for jobs in (None, 4))
    assert (one.jobs, one.train_threads, one.time_threads) == (1, 8, 8)
    assert (four.jobs, four.train_threads, four.time_threads) == (4, 2, 8)
    assert one.site == four.site and one.machine.id == four.machine.id
    assert four.needs("time", None).alone and not four.needs("train", None).alone
    for wrong in ({"jobs": 9}, {"jobs": 4, "threads": 3}):
        with pytest.raises(SelectionError, match="8 "):
            find(tmp_path, [], device="cpu", **wrong)


def test_the_parent_makes_no_cuda_context(tmp_path: Path) -> None:
    """Counting devices and describing the machine leave CUDA as it was, with a GPU and without."""
    script = """
import sys, pathlib, torch
import attnbench
made = attnbench.plan("rela", "lra-text", preset="smoke", results=sys.argv[1])
assert made.left and not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "r")], check=True, cwd=tmp_path)
