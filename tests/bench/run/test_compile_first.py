"""Kernels are compiled side by side before the gate where a GPU is there, once, and whatever becomes of it."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import suite
from attnbench.bench.gate.suite import PROPERTIES, run_part
from attnbench.bench.process.child import decode_order, encode_order
from attnbench.bench.run import compile_first as module
from attnbench.bench.run import worker
from attnbench.bench.run.compile_first import compile_first, has_kernels, parts_of
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.events import Event
from attnbench.bench.run.job import GatePartJob, Job
from attnbench.bench.store.store import Store
from attnbench.tasks.data.data import place
from attnbench.variants import AttentionShape

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch)
    with Redirected():
        yield fake


def cell(name: str, task: str = "sweep[length=256,mode=forward]") -> Cell:
    return Cell(variant=Spec.parse(name), task=Spec.parse(task), preset=Spec("quick"), seed=0, lane="time")


def context_in(folder: Path) -> tuple[WorkerContext, list[Event]]:
    sent: list[Event] = []
    here = place(folder, True, print)
    return WorkerContext(device=DEVICE, place=here, store=Store(folder), digests={}, block="b", send=sent.append), sent


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GatePartJob]:
    """The jobs that would have had a process each."""
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(16)))
    started: list[GatePartJob] = []
    monkeypatch.setattr(module, "in_child", started.append)
    return started


def test_variants_with_kernels_are_compiled_side_by_side_and_only_once(
    cuda: FakeCuda, jobs: list[GatePartJob], tmp_path: Path
) -> None:
    context, sent = context_in(tmp_path)
    cells = [cell(name) for name in ("softmax", "rela", "entmax15", "nystrom", "rela[impl=eager]")]
    # a process that waits for hours without a word is taken to hang
    assert compile_first(context, cells) == 8 and len(sent) == 1 + 8
    assert {(str(job.cell.variant), job.part, job.parts) for job in jobs} == {
        (name, part, 4) for name in ("rela", "entmax15") for part in range(4)
    }
    assert {job.device for job in jobs} == {"cuda:0"}
    jobs.clear()
    # other lengths have the same kernels; another precision has others
    assert compile_first(context, [cell("rela", "sweep[length=512,mode=forward]")]) == 0
    assert compile_first(context, [cell("rela", "sweep[length=512,mode=forward,dtype=bfloat16]")]) == 4


def test_a_worker_compiles_ahead_on_a_gpu_alone(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Cell] = []
    monkeypatch.setattr(worker, "compile_first", lambda context, cells: compiled.extend(cells))
    monkeypatch.setattr(worker, "time_cells", lambda context, cells: iter(()))
    for device, count in (("cpu", 0), ("cuda:0", 1)):
        job = Job(
            block="b", cells=(cell("rela"),), digests={}, device=device, results=tmp_path, data_dir=None, offline=True
        )
        assert list(worker.records_of(job, lambda event: None)) == [] and len(compiled) == count


def test_a_process_that_fails_costs_no_verdict_and_no_other(
    cuda: FakeCuda, jobs: list[GatePartJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(job: GatePartJob) -> None:
        jobs.append(job)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "in_child", failing)
    assert compile_first(context_in(tmp_path)[0], [cell("rela"), cell("no-such-variant")]) == 4 == len(jobs)


def test_jobs_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)
    jobs = parts_of([cell("rela")], "cuda:0", 3)
    assert list(module.run_side_by_side(jobs, lambda job: meeting.wait() and None)) == jobs
    assert not meeting.broken


@pytest.mark.parametrize(("variants", "cores", "parts"), [(1, 1, 0), (1, 2, 2), (1, 16, 4), (3, 16, 4), (9, 16, 1)])
def test_parts_are_as_many_as_there_are_processes_for(variants: int, cores: int, parts: int) -> None:
    assert len(parts_of([cell("rela")] * variants, "cuda:0", cores)) == variants * parts


@pytest.mark.parametrize(("name", "has"), [
    ("rela", True), ("rela[impl=triton]", True), ("rela[impl=eager]", False), ("nystrom", False), ("nobody", False),
])  # fmt: skip
def test_who_has_kernels_is_asked_of_its_parameters(name: str, has: bool) -> None:
    assert has_kernels(Spec.parse(name)) is has


def test_parts_of_the_gate_are_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    def findings(
        variant: str, shape: AttentionShape, length: int, properties: tuple[suite.Property, ...], **more: object
    ) -> Iterator[suite.GateResult]:
        run.extend(each.name for each in properties)
        yield suite.GateResult(property="one", held=True)

    monkeypatch.setattr(suite, "_findings", findings)
    for part in range(3):
        run_part("linear", AttentionShape(heads=2, head_dim=8, max_length=64), part, 3)
    assert sorted(run) == sorted(each.name for each in PROPERTIES if each.quick)


def test_a_job_reaches_the_gate_of_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    job = GatePartJob(cell=cell("rela", "sweep[length=128,batch=3,causal=true]"), device="cpu", part=1, parts=2)
    assert decode_order(encode_order(job)) == job
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(module, "run_part", lambda *given, batch: asked.append((*given, batch)))
    monkeypatch.setattr(worker, "import_foreign_plugins_here", lambda: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    assert worker.main(io.BytesIO(encode_order(job)), io.BytesIO()) == 0
    [(variant, shape, part, parts, batch)] = asked
    assert (str(variant), part, parts, batch) == ("rela", 1, 2, 3)
    assert isinstance(shape, AttentionShape) and shape.causal and shape.max_length == 128
