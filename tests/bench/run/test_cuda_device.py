"""What a run does on a CUDA device, tried on a fake one: which device, a lost one, and graphs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Measurement, Outcome, Record
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.machine import choose_device
from attnbench.bench.process.child import encode_order
from attnbench.bench.run import worker
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.events import Event, Restarted
from attnbench.bench.run.lanes import time as lane
from attnbench.bench.run.lanes.timing_record import memory
from attnbench.bench.run.workloads.sweep_point import SweepWorkloads, point_of
from attnbench.bench.run.workloads.workload import Workload, Workloads
from attnbench.bench.store.store import Store
from attnbench.tasks.data.data import place
from attnbench.variants import AttentionShape, build

DEVICE = torch.device("cuda", 0)
SHAPE = AttentionShape(heads=1, head_dim=8, max_length=16)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch)
    with Redirected():
        yield fake


@pytest.fixture
def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)


@pytest.mark.parametrize("wanted", [None, "auto", "cuda", "cuda:0"])
def test_the_device_that_is_chosen_is_one_that_a_worker_can_be_set_to(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str | None
) -> None:
    """`torch.cuda.set_device` takes no device without an index."""
    # set once, so that what the worker sets is taken back too
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for name in ("torch.set_num_threads", "torch.use_deterministic_algorithms"):
        monkeypatch.setattr(name, lambda *_, **__: None)
    monkeypatch.setattr(worker, "import_foreign_plugins_here", lambda: None)
    job = Job(
        id="b", cells=(), digests={}, device=str(choose_device(wanted)), results=tmp_path,
        data_dir=tmp_path, offline=True,
    )  # fmt: skip
    assert worker.main(io.BytesIO(encode_order(job)), io.BytesIO()) == 0
    assert cuda.chosen == [0]
    # training repeats its sums only where cuBLAS is told how much memory it may take
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


class Scripted(Workloads):
    """Workloads by variant name: a function each, called for a sample."""

    works: dict[str, Callable[[], object]]

    def workload(self, variant: Spec) -> Workload:
        return Workload(variants=[build("softmax", SHAPE)], work=self.works[variant.name], parameters=(0, 0))


def time_records(
    monkeypatch: pytest.MonkeyPatch, folder: Path, works: dict[str, Callable[[], object]], bare: bool = False
) -> tuple[list[Record], list[Event]]:
    """Records and events of the time lane over scripted works."""
    task = Spec.parse("sweep[length=16,heads=1,head_dim=8,mode=forward]")
    cells = [Cell(variant=Spec(name), task=task, preset=Spec("quick"), seed=0, lane="time") for name in works]
    sent: list[Event] = []
    context = WorkerContext(
        job=Job(id="b", cells=tuple(cells), digests={cell.key: "0" * 12 for cell in cells}, device=str(DEVICE)),
        place=place(folder, True, print), store=Store(folder), send=sent.append,
    )  # fmt: skip
    recipe = TASKS.build(task).recipe(Spec("quick"))
    workloads = Scripted(recipe=recipe, device=DEVICE, sequences=1, real=16, padded=16, mode="forward", bare=bare)
    workloads.works = works
    monkeypatch.setattr(lane, "_workloads", lambda *_: workloads)
    return list(lane.time_cells(context, cells)), sent


def test_an_error_that_loses_the_device_ends_the_process_with_one_culprit(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After an illegal access every call of the process fails: who comes next is innocent, and needs another one."""

    def fault() -> None:
        cuda.lost = "CUDA error: an illegal memory access was encountered"

    works = {"softmax": lambda: cuda.launch(1e-3), "linear": fault, "rela": lambda: cuda.launch(1e-3)}
    records, sent = time_records(monkeypatch, tmp_path, works)
    assert [(str(r.cell.variant), r.outcome) for r in records] == [("linear", Outcome.CRASHED)]
    assert "illegal memory access" in records[0].reason
    assert records[0].setting["float32_products"] == "highest"
    assert isinstance(sent[-1], Restarted)


def test_an_error_that_loses_the_device_during_the_rounds_is_of_whose_turn_it_is(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def late() -> None:
        calls.append(0)
        if len(calls) > 3:
            cuda.lost = "CUDA error: misaligned address"
        cuda.launch(1e-3)

    works = {"softmax": lambda: cuda.launch(1e-3), "linear": late, "rela": lambda: cuda.launch(1e-3)}
    records, sent = time_records(monkeypatch, tmp_path, works)
    assert [(str(r.cell.variant), r.outcome) for r in records] == [("linear", Outcome.CRASHED)]
    assert isinstance(sent[-1], Restarted)


def graph_point(level: str, mode: str) -> SweepWorkloads:
    return point_of(f"sweep[length=32,heads=2,head_dim=8,level={level},mode={mode},graph=true]", DEVICE)


@pytest.mark.parametrize("mode", ["forward", "step"])
@pytest.mark.parametrize("level", ["attention", "block", "model"])
def test_a_graph_is_captured_at_every_level_and_its_operators_are_counted(
    cuda: FakeCuda, ungated: None, level: str, mode: str
) -> None:
    """A replay shows no operator, and an optimiser that is not `capturable` refuses to be captured."""
    workloads = graph_point(level, mode)
    ready = lane._ready(workloads, Spec("softmax"))
    assert ready.flops > 0 and ready.traffic_bytes > 0
    before = [graph.replays for graph in cuda.graphs]
    ready.timed()
    assert [graph.replays for graph in cuda.graphs] == [*before[:-1], before[-1] + 1]


@pytest.mark.slow
def test_the_peak_of_a_graph_holds_what_it_keeps_for_its_replays(cuda: FakeCuda, ungated: None) -> None:
    workloads = graph_point("attention", "forward")
    plain = point_of("sweep[length=32,heads=2,head_dim=8,level=attention,mode=forward]", DEVICE)
    peaks = []
    for found in (workloads, plain):
        workload = found.workload(Spec("softmax"))
        work = workload.work

        def taking(work: Callable[[], object] = work) -> object:
            cuda.allocate(1000)
            return work()

        workload.work = taking
        peaks.append({m.name: m.value for m in memory(found, workload)}["peak_bytes"])
    # the work of a capture takes as much as an ordinary pass, and a replay alone shows nothing
    assert peaks[0] == peaks[1] >= 1000


def test_attention_alone_is_calibrated_once_a_block_and_a_failure_of_that_costs_no_record(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rate = Measurement.of("kernel_flops_per_second", 7e14, kernel="product")
    monkeypatch.setattr(lane, "peaks_of", lambda *_: None)
    monkeypatch.setattr(lane, "drift_probe", lambda device: lambda: cuda.launch(1e-4))
    monkeypatch.setattr(lane, "calibration", lambda device: iter([rate]))
    works = {"linear": lambda: cuda.launch(1e-3), "softmax": lambda: cuda.launch(1e-3)}
    found = {str(r.cell.variant): r for r in time_records(monkeypatch, tmp_path, works, bare=True)[0]}
    assert found["softmax"].first("kernel_flops_per_second") == rate
    assert found["linear"].first("kernel_flops_per_second") is None

    def no_room(device: torch.device) -> Iterator[Measurement]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(lane, "calibration", no_room)
    found = {str(r.cell.variant): r for r in time_records(monkeypatch, tmp_path, works, bare=True)[0]}
    assert [(r.outcome, r.reason) for r in found.values()] == [(Outcome.OK, "")] * 2
    assert found["softmax"].absent["kernel_flops_per_second"] == "CUDA out of memory"
