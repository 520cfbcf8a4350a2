"""Variants are examined side by side before their lanes where a GPU is there, once, and whatever becomes of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import build, suite
from attnbench.bench.gate.build import build_checked_cached
from attnbench.bench.gate.suite import PROPERTIES, run_short
from attnbench.bench.measure.machine import describe
from attnbench.bench.process.child import decode_order, encode_order
from attnbench.bench.run import gate_first as module
from attnbench.bench.run import worker
from attnbench.bench.run.events import Event, Warned
from attnbench.bench.run.gate_first import GateOrder, gate_first, has_kernels, shapes_of
from attnbench.tasks.data.data import place
from attnbench.variants import AttentionShape


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch)
    with Redirected():
        yield fake


def cell(name: str, task: str = "sweep[length=256,mode=forward]") -> Cell:
    return Cell(variant=Spec.parse(name), task=Spec.parse(task), preset=Spec("quick"), seed=0, lane="time")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[GateOrder]:
    """The jobs that would have had a process each."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(16)))
    started: list[GateOrder] = []

    def side_by_side(
        orders: list[GateOrder], processes: int, target: str, ask: object
    ) -> Iterator[tuple[GateOrder, None]]:
        assert 1 <= processes <= len(orders) and target.endswith("worker")
        started.extend(orders)
        yield from ((order, None) for order in orders)

    monkeypatch.setattr(module, "side_by_side", side_by_side)
    return started


def test_each_variant_has_a_process_for_all_its_shapes(jobs: list[GateOrder]) -> None:
    sent: list[Event] = []
    cells = [
        cell(name, f"sweep[length={n},mode=forward]") for n in (256, 512) for name in ("softmax", "rela", "nystrom")
    ]
    baseline = replace(cell("softmax"), lane="baseline")
    assert gate_first([*cells, baseline], "cuda:0", None, True, sent.append) == 3
    assert [str(job.cells[0].variant) for job in jobs] == ["softmax", "rela", "nystrom"]
    assert [len(job.cells) for job in jobs] == [2, 2, 2] and {job.device for job in jobs} == {"cuda:0"}
    # they compile at once, with all cores between them
    assert {job.threads for job in jobs} == {5}
    assert [type(event) for event in sent] == [Warned]


def test_nothing_to_run_asks_nobody(jobs: list[GateOrder]) -> None:
    assert gate_first([replace(cell("softmax"), lane="baseline")], "cuda:0", None, True, print) == 0 == len(jobs)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the gate was asked in this process; linear fails."""
    found: list[str] = []

    def gate(spec: Spec, shape: AttentionShape, *, batch: int, form: str) -> object:
        found.append(f"{spec} {form} {shape.max_length}")
        return suite.Result(property="causal", verdict="fails") if spec.name == "linear" else None

    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "quick_gate", gate)
    monkeypatch.setattr(module, "compile_for", lambda *given: None)
    return found


def examine(*cells: Cell) -> None:
    threads = torch.get_num_threads()
    job = GateOrder(cells=cells, device="cpu", data_dir=None, offline=True, threads=1)
    assert decode_order(encode_order(job)) == job
    module.examine_here(job)
    torch.set_num_threads(threads)


def test_a_verdict_made_ahead_is_that_which_the_job_would_have_kept(asked: list[str], tmp_path: Path) -> None:
    lengths = [cell("nystrom", f"sweep[length={n},mode=forward]") for n in (256, 512)]
    examine(*lengths)
    # the short form once
    assert asked == ["nystrom short 256", "nystrom own 256", "nystrom own 512"]
    examine(cell("linear"), cell("no-such-variant"))
    asked.clear()
    examine(*lengths)
    assert asked == []
    cache, machine = place(None, True, print).cache, describe(torch.device("cpu")).id
    for name in ("nystrom", "linear"):
        task = TASKS.build(cell(name).task)
        recipe = task.recipe(Spec("quick"))
        with contextlib.suppress(build.Incorrect):
            build_checked_cached(cache, machine, recipe.batch)(Spec(name))(
                *shapes_of(task, recipe, torch.device("cpu"))
            )
    # what failed is examined again, where its words are wanted
    assert asked == ["linear short 256"]


def test_layers_of_one_kind_share_a_verdict(asked: list[str], tmp_path: Path) -> None:
    shape = AttentionShape(heads=2, head_dim=8, max_length=64, layers=2)
    for layer in (0, 1):
        build_checked_cached(tmp_path, "box")(Spec("rela"))(replace(shape, layer=layer))
    assert asked == ["rela short 64", "rela own 64"]


def test_jobs_of_a_node_are_examined_there_and_those_of_this_machine_before(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[str] = []
    monkeypatch.setattr(worker, "gate_first", lambda cells, *given: ahead.append(given[0]))
    monkeypatch.setattr(worker, "time_cells", lambda context, cells: iter(()))
    monkeypatch.setattr(worker, "end_servers", lambda: None)
    for device, executor in (("cpu", "slurm"), ("cuda:0", "local"), ("cuda:0", "slurm")):
        job = Job(
            id="b", cells=(cell("rela"),), digests={}, device=device, results=tmp_path, data_dir=None, offline=True,
            executor=executor,
        )  # fmt: skip
        assert list(worker.records_of(job, lambda event: None)) == []
    assert ahead == ["cuda:0"]


@pytest.mark.parametrize(("name", "has"), [
    ("rela", True), ("rela[impl=triton]", True), ("rela[impl=eager]", False), ("nystrom", False), ("nobody", False),
])  # fmt: skip
def test_who_has_kernels_is_asked_of_its_parameters(name: str, has: bool) -> None:
    assert has_kernels(Spec.parse(name)) is has


def test_a_dry_pass_asks_all_that_the_quick_gate_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    def findings(
        variant: str, shape: AttentionShape, length: int, properties: tuple[suite.Property, ...], **more: object
    ) -> Iterator[suite.Result]:
        run.extend(each.name for each in properties)
        # a pass that computes nothing finds faults everywhere, and goes on
        yield suite.Result(property="one", verdict="fails")

    monkeypatch.setattr(suite, "_findings", findings)
    run_short("linear", AttentionShape(heads=2, head_dim=8, max_length=64))
    assert sorted(run) == sorted(each.name for each in PROPERTIES if each.quick)


def test_a_job_reaches_the_child(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = cell("rela", "sweep[length=128,batch=3,causal=true]")
    job = GateOrder(cells=(sweep,), device="cpu", data_dir=None, offline=True, threads=2)
    monkeypatch.setattr(worker, "import_foreign_plugins_here", lambda: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    assert worker.main(io.BytesIO(encode_order(job)), io.BytesIO()) == 0
    assert asked == ["rela short 128", "rela own 128"]
