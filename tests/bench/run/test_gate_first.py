"""Variants are examined side by side before their lanes where a GPU is there, once, and whatever becomes of it."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import build, suite
from attnbench.bench.gate.build import build_checked_cached
from attnbench.bench.gate.suite import PROPERTIES, run_short
from attnbench.bench.process.child import decode_order, encode_order
from attnbench.bench.run import gate_first as module
from attnbench.bench.run import worker
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.events import Event
from attnbench.bench.run.gate_first import examined, gate_first, has_kernels, run_side_by_side
from attnbench.bench.run.job import GateJob, Job
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
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GateJob]:
    """The jobs that would have had a process each."""
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(16)))
    started: list[GateJob] = []
    monkeypatch.setattr(module, "in_child", started.append)
    return started


def passes(context: WorkerContext, *cells: Cell) -> None:
    """Leaves the verdicts that a gate would leave which finds nothing."""
    for each in cells:
        shape, batch = examined(each, DEVICE)
        for file in build.verdicts(context.place.cache, context.machine.speed_id, batch, each.variant, shape).values():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)


def test_each_variant_is_examined_in_a_process_of_its_own_and_only_once(
    cuda: FakeCuda, jobs: list[GateJob], tmp_path: Path
) -> None:
    context, sent = context_in(tmp_path)
    cells = [cell(name) for name in ("softmax", "rela", "entmax15", "nystrom")]
    # a process that waits for hours without a word is taken to hang
    assert gate_first(context, [*cells, *cells]) == 4 and len(sent) == 1 + 4
    assert [str(job.cell.variant) for job in jobs] == ["softmax", "rela", "entmax15", "nystrom"]
    # they compile at once, with all cores between them
    assert {(job.device, job.threads) for job in jobs} == {("cuda:0", 4)}
    passes(context, *cells)
    jobs.clear()
    assert gate_first(context, cells) == 0
    # another length is examined too, as is another precision
    assert gate_first(context, [cell("rela", "sweep[length=512,mode=forward]")]) == 1
    assert gate_first(context, [cell("rela", "sweep[length=512,mode=forward,dtype=bfloat16]")]) == 1
    assert [job.threads for job in jobs] == [16, 16]


def test_a_verdict_of_a_process_is_that_which_the_lane_would_have_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def gate(spec: Spec, shape: AttentionShape, *, batch: int, form: str) -> object:
        asked.append(f"{spec} {form}")
        return suite.GateResult(property="causal", held=False) if spec.name == "linear" else None

    monkeypatch.setattr(build, "quick_gate", gate)
    monkeypatch.setattr(module, "compile_for", lambda *given: None)
    for name in ("nystrom", "linear"):
        job = GateJob(cell=cell(name), device="cpu", cache=tmp_path, machine="box", threads=1)
        assert decode_order(encode_order(job)) == job
        module.examine_here(job)
    assert asked == ["nystrom short", "nystrom own", "linear short"]
    asked.clear()
    shape, batch = examined(cell("nystrom"), torch.device("cpu"))
    for name in ("nystrom", "linear"):
        with contextlib.suppress(build.Incorrect):
            build_checked_cached(tmp_path, "box", batch)(Spec(name))(shape)
    # what failed is examined again, where its words are wanted
    assert asked == ["linear short"]


def test_layers_of_one_kind_share_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(build, "quick_gate", lambda spec, shape, *, batch, form: asked.append(shape.layer))
    shape = AttentionShape(heads=2, head_dim=8, max_length=64, layers=2)
    for layer in (0, 1):
        build_checked_cached(tmp_path, "box")(Spec("rela"))(replace(shape, layer=layer))
    assert asked == [0, 0]


def test_a_worker_examines_ahead_on_a_gpu_alone(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[Cell] = []
    monkeypatch.setattr(worker, "gate_first", lambda context, cells: ahead.extend(cells))
    monkeypatch.setattr(worker, "time_cells", lambda context, cells: iter(()))
    for device, count in (("cpu", 0), ("cuda:0", 1)):
        job = Job(
            block="b", cells=(cell("rela"),), digests={}, device=device, results=tmp_path, data_dir=None, offline=True
        )
        assert list(worker.records_of(job, lambda event: None)) == [] and len(ahead) == count


def test_a_process_that_fails_costs_no_verdict_and_no_other(
    cuda: FakeCuda, jobs: list[GateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(job: GateJob) -> None:
        jobs.append(job)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "in_child", failing)
    assert gate_first(context_in(tmp_path)[0], [cell("rela"), cell("softmax"), cell("no-such-variant")]) == 2
    assert len(jobs) == 2


def test_jobs_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)
    jobs = [
        GateJob(cell=cell(name), device="cuda:0", cache=Path(), machine="", threads=1)
        for name in ("rela", "linear", "softmax")
    ]
    assert list(run_side_by_side(jobs, 3, lambda job: meeting.wait() and None)) == jobs
    assert not meeting.broken


@pytest.mark.parametrize(("name", "has"), [
    ("rela", True), ("rela[impl=triton]", True), ("rela[impl=eager]", False), ("nystrom", False), ("nobody", False),
])  # fmt: skip
def test_who_has_kernels_is_asked_of_its_parameters(name: str, has: bool) -> None:
    assert has_kernels(Spec.parse(name)) is has


def test_a_dry_pass_asks_all_that_the_quick_gate_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    def findings(
        variant: str, shape: AttentionShape, length: int, properties: tuple[suite.Property, ...], **more: object
    ) -> Iterator[suite.GateResult]:
        run.extend(each.name for each in properties)
        # a pass that computes nothing finds faults everywhere, and goes on
        yield suite.GateResult(property="one", held=False)

    monkeypatch.setattr(suite, "_findings", findings)
    run_short("linear", AttentionShape(heads=2, head_dim=8, max_length=64))
    assert sorted(run) == sorted(each.name for each in PROPERTIES if each.quick)


def test_a_job_reaches_the_gate_of_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep = cell("rela", "sweep[length=128,batch=3,causal=true]")
    job = GateJob(cell=sweep, device="cpu", cache=tmp_path, machine="box", threads=2)
    asked: list[tuple[AttentionShape, int]] = []
    monkeypatch.setattr(
        module,
        "build_checked_cached",
        lambda cache, machine, batch: lambda spec: lambda shape: asked.append((shape, batch)),
    )
    monkeypatch.setattr(module, "compile_for", lambda *given: None)
    monkeypatch.setattr(worker, "import_foreign_plugins_here", lambda: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    assert worker.main(io.BytesIO(encode_order(job)), io.BytesIO()) == 0
    [(shape, batch)] = asked
    assert batch == 3 and shape.causal and shape.max_length == 128
