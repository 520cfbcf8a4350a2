"""Jobs on this machine: which run at once, on which device, and what a neighbour may not do to them."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Job, Lane
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.executor_settings import ExecutorSettings
from attnbench.bench.run.events import CellFinished, Event
from attnbench.bench.run.executors import local
from attnbench.bench.run.executors.executor import Needs
from attnbench.bench.run.executors.local import LocalExecutor, local_resources
from attnbench.bench.run.executors.run_job import Waiting, WorkerError

MACHINE = Machine(id="m", system="s", processor="p", cores=2, threads=1, memory_bytes=1)
PATIENCE = 20.0


def job(name: str, *variants: str, lane: Lane = "train") -> Job:
    cells = tuple(
        Cell(variant=Spec(each), task=Spec("t"), preset=Spec("smoke"), lane=lane) for each in variants or (name,)
    )
    digests = {cell.key: "a-b-c" for cell in cells}
    block = name.encode().hex()
    return Job(id=block, cells=cells, digests=digests, device="cpu", results=Path("r"),
               data_dir=None, offline=True)  # fmt: skip


def name_of(block: str) -> str:
    return bytes.fromhex(block).decode()


class Stage:
    """Jobs that end when a test says so, with one Record a Cell.

    `needed`: by name, the names of jobs that must have run at the same time before this one ends.
    """

    def __init__(self) -> None:
        self.needed: dict[str, set[str]] = {}
        self.endless: set[str] = set()
        self.outcomes: dict[str, list[Outcome]] = {}
        self.errors: dict[str, BaseException] = {}
        self.running: set[str] = set()
        self.met: set[str] = set()
        self.seen: list[tuple[str, frozenset[str], str]] = []

    def __call__(self, job: Job, machine: Machine) -> Iterator[Event | Waiting]:
        name = name_of(job.id)
        self.running.add(name)
        self.seen.append((name, frozenset(self.running), job.gpu))
        try:
            while name in self.endless or not self.needed.get(name, set()) <= self.met | self.running:
                yield Waiting(NoChild(), time.monotonic() + 0.001)  # type: ignore[arg-type]
            self.met |= self.running
            if name in self.errors:
                raise self.errors[name]
            for cell in job.cells:
                outcome = self.outcomes[name].pop(0) if self.outcomes.get(name) else Outcome.OK
                yield CellFinished(Record(cell=cell, outcome=outcome, machine=machine, block=job.id, node=job.node))
        finally:
            self.running.discard(name)


class NoChild:
    """Never says anything."""

    open: Sequence[int] = ()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage()
    monkeypatch.setattr(local, "run_job", found)
    return found


def executor(*devices: str) -> LocalExecutor:
    return LocalExecutor(MACHINE, devices or ("",))


def ignore(event: Event) -> None:
    """Nobody listens."""


TRAINS, TIMES = Needs(gpus=0, threads=1), Needs(gpus=0, threads=1, alone=True)
ON_GPU = Needs(gpus=1, threads=1)


def test_one_device_runs_blocks_in_the_order_of_being_submitted(stage: Stage) -> None:
    here = executor()
    for name in ("first", "second"):
        here.submit(job(name, "one", "two"), TRAINS)
    events: list[Event] = []
    counts = [(name_of(block), len(events)) for block in here.finished(events.append)]
    assert counts == [("first", 2), ("second", 4)]
    assert [beside for _, beside, _ in stage.seen] == [{"first"}, {"second"}]
    assert list(here.finished(events.append)) == []


def test_as_many_jobs_run_at_once_as_there_are_devices_each_with_its_own(stage: Stage) -> None:
    here = executor("GPU-a", "GPU-b")
    stage.needed = {key: {"one", "two"} for key in ("one", "two")}
    for name in ("one", "two", "three"):
        here.submit(job(name), ON_GPU)
    assert sorted(map(name_of, here.finished(ignore))) == ["one", "three", "two"]
    by_name = {name: gpu for name, _, gpu in stage.seen}
    assert {by_name["one"], by_name["two"]} == {"GPU-a", "GPU-b"}
    assert max(len(beside) for _, beside, _ in stage.seen) == 2


def test_a_timing_on_a_processor_never_runs_beside_another_job(stage: Stage) -> None:
    here = executor("", "")
    stage.needed = {key: {"a", "b"} for key in ("a", "b")}
    here.submit(job("a"), TRAINS)
    here.submit(job("b"), TRAINS)
    here.submit(job("time1", lane="time"), TIMES)
    here.submit(job("time2", lane="time"), TIMES)
    here.submit(job("c"), TRAINS)
    assert len(list(here.finished(ignore))) == 5
    assert all(beside == {name} for name, beside, _ in stage.seen if name.startswith("time"))


def test_a_timing_on_a_gpu_shares_the_machine_and_not_the_device(stage: Stage) -> None:
    here = executor("0", "1")
    stage.needed = {key: {"train", "time"} for key in ("train", "time")}
    here.submit(job("train"), ON_GPU)
    here.submit(job("time", lane="time"), ON_GPU)
    assert len(list(here.finished(ignore))) == 2
    assert len({gpu for _, _, gpu in stage.seen}) == 2


def test_a_cell_that_ran_out_of_memory_beside_another_runs_again_alone(stage: Stage) -> None:
    here = executor("", "")
    stage.needed = {key: {"a", "b"} for key in ("a", "b")}
    stage.outcomes = {"a": [Outcome.OUT_OF_MEMORY]}
    here.submit(job("a"), TRAINS)
    here.submit(job("b"), TRAINS)
    events: list[Event] = []
    assert len(list(here.finished(events.append))) == 2
    assert [event.record.outcome for event in events if isinstance(event, CellFinished)] == [Outcome.OK, Outcome.OK]
    assert stage.seen[-1][:2] == ("a", {"a"})


def test_out_of_memory_alone_is_an_outcome(stage: Stage) -> None:
    here = executor("", "")
    stage.outcomes = {"a": [Outcome.OUT_OF_MEMORY]}
    here.submit(job("a"), TRAINS)
    events: list[Event] = []
    assert len(list(here.finished(events.append))) == 1
    assert [event.record.outcome for event in events if isinstance(event, CellFinished)] == [Outcome.OUT_OF_MEMORY]


def test_a_second_block_waits_while_memory_is_short(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.run.executors.local.LEAST_BYTES", 2**60)
    here = executor("", "")
    for name in ("a", "b"):
        here.submit(job(name), TRAINS)
    assert len(list(here.finished(ignore))) == 2
    assert all(len(beside) == 1 for _, beside, _ in stage.seen)


def test_a_cancelled_block_gets_no_further_record(stage: Stage) -> None:
    here = executor()
    for name in ("first", "second"):
        here.submit(job(name, "one", "two"), TRAINS)
    here.cancel(job("second").id)
    events: list[Event] = []

    def cancel(event: Event) -> None:
        events.append(event)
        here.cancel(job("first").id)

    assert list(here.finished(cancel)) == [] and len(events) == 1


def test_what_a_person_must_cure_ends_all_that_runs(stage: Stage) -> None:
    here = executor("", "")
    stage.endless = {"long"}
    stage.errors = {"bad": WorkerError("no reviews here", 3)}
    here.submit(job("long"), TRAINS)
    here.submit(job("bad"), TRAINS)
    with pytest.raises(WorkerError, match="no reviews here"):
        list(here.finished(ignore))
    assert not stage.running


def test_an_interrupted_run_leaves_nothing_running(stage: Stage) -> None:
    here = executor("", "")
    stage.endless = {"long"}
    here.submit(job("long"), TRAINS)
    here.submit(job("quick"), TRAINS)

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(here.finished(interrupt))
    assert not stage.running


def settings(jobs: int | None = None) -> ExecutorSettings:
    return ExecutorSettings(jobs=jobs)


def described(monkeypatch: pytest.MonkeyPatch, *gpus: str) -> list[str]:
    """A machine with these GPUs, as far as its resources go; returns what a person is told."""
    import torch

    machines = [replace(MACHINE, id=f"with-{gpu}", accelerators=(gpu,)) for gpu in gpus]
    monkeypatch.setattr(local, "choose_device", lambda name: torch.device(name or "cuda"))
    monkeypatch.setattr(local, "describe_in_child", lambda device, threads: machines[int(device[5:] or 0) :][
        : 1 if ":" in device else None])  # fmt: skip
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(local.torch, "set_num_threads", lambda count: None)
    return []


def find(tmp_path: Path, told: list[str], jobs: int | None = None, threads: int = 0, device: str | None = None):
    return local_resources(settings(jobs), device, threads, told.append)


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
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(local.torch, "set_num_threads", lambda count: None)
    one, four = (find(tmp_path, [], jobs=jobs, device="cpu") for jobs in (None, 4))
    assert (one.jobs, one.train_threads, one.time_threads) == (1, 8, 8)
    assert (four.jobs, four.train_threads, four.time_threads) == (4, 2, 8)
    assert one.site == four.site and one.machine.id == four.machine.id
    for wrong in ({"jobs": 9}, {"jobs": 4, "threads": 3}):
        with pytest.raises(SelectionError, match="8 "):
            find(tmp_path, [], device="cpu", **wrong)


@pytest.mark.slow
def test_the_parent_makes_no_cuda_context(tmp_path: Path) -> None:
    """Counting devices and describing the machine leave CUDA as it was, with a GPU and without."""
    script = """
import sys, pathlib, torch
import attnbench
made = attnbench.plan("rela", "lra-text", preset="smoke", results=sys.argv[1])
assert made.left and not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "r")], check=True, cwd=tmp_path)
