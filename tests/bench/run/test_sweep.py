"""Sweeps from the command line to the board: lengths, failures that are data, and the longest that fits."""

import pytest
import torch

from attnbench.bench.board.select import boards_of_sweeps
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import options_of
from attnbench.bench.process.ask import Reporter
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.events import CellFinished, LoggingListener, TrainingProgress
from attnbench.bench.run.lanes import time as lane
from attnbench.bench.run.questions import ShapeOf
from attnbench.bench.run.runner import Runner
from attnbench.bench.run.workloads import sweep_point as point_module
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.tasks.contract import DataPlace

PRESET = "smoke[timing_seconds=0.1]"
TASK = "sweep[heads=1,head_dim=16,mode=forward,length=64..256]"


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Two threads are enough for all, and the gate has tests of its own."""
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)
    monkeypatch.setattr("attnbench.bench.measure.roofline.SECONDS", 0.01)


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Runners that run their blocks in this process, which is quicker than a child."""

    def run_here(job, machine, **_):
        context = WorkerContext(
            job=job, place=DataPlace(root=tmp_path, cache=tmp_path), store=Store(tmp_path), send=make.said.append,
        )  # fmt: skip
        context.machine = machine
        yield from map(CellFinished, lane.time_cells(context, list(job.cells)))

    monkeypatch.setattr("attnbench.bench.run.executors.local.run_job", run_here)

    def make(variants, task=TASK, **changes):
        options = options_of(variants, task, preset=PRESET, results=tmp_path, device="cpu",
                             threads=torch.get_num_threads(), **changes)  # fmt: skip
        return Runner(options=options, listener=LoggingListener())

    make.said = []
    return make


def run(runner):
    return {(str(r.cell.variant), int(r.cell.task.get("length", 1024))): r for r in _all(runner)}


@pytest.mark.slow
def test_a_sweep_measures_every_variant_at_every_length_and_is_then_done(runner, tmp_path):
    found = run(runner("softmax,linear"))
    assert set(found) == {(name, n) for name in ("softmax", "linear") for n in (64, 128, 256)}
    for record in found.values():
        assert record.outcome is Outcome.OK and record.data.fidelity == "synthetic" and record.implementation
        own, reference, null = (record.first(f"{p}forward_seconds").samples for p in ("", "reference_", "null_"))
        assert len(own) == len(reference) == len(null) >= 3
        named = {m.name for m in record.measurements}
        assert {"peak_bytes", "flops", "dense_flops", "arithmetic_intensity", "peak_share", "canary_seconds"} <= named
        assert {"declared_density", "sparsity", "block_sparsity", "tokens_per_second", "state_bytes"} <= named
    softmax = found["softmax", 256]
    assert softmax.first("flops").value == softmax.first("dense_flops").value == 4 * 256 * 256 * 16
    assert run(runner("softmax,linear")) == {}


@pytest.mark.slow  # the rule alone: tests/bench/plan/test_skip.py
def test_after_a_failure_longer_lengths_are_skipped_with_its_reason_and_others_go_on(runner, monkeypatch):
    build = point_module.SweepWorkloads._attention

    def greedy(self, spec):
        if spec.name == "linear" and self.point.length >= 128:
            torch.empty(2**60, dtype=torch.uint8)
        return build(self, spec)

    monkeypatch.setattr(point_module.SweepWorkloads, "_attention", greedy)
    found = run(runner("softmax,linear"))
    assert [found["linear", n].outcome for n in (64, 128, 256)] == [
        Outcome.OK, Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_MEMORY
    ]  # fmt: skip
    assert found["linear", 256].reason.startswith("skipped: out of memory at length 128")
    assert found["softmax", 256].outcome is Outcome.OK
    monkeypatch.setattr(point_module.SweepWorkloads, "_attention", build)
    assert run(runner("softmax,linear")) == {}
    again = run(runner("softmax,linear", retry=True))
    # what other processes disturbed is timed again as well
    assert {key: r.outcome for key, r in again.items() if key[0] == "linear" and key[1] > 64} == {
        ("linear", 128): Outcome.OK, ("linear", 256): Outcome.OK
    }  # fmt: skip


def test_a_sample_that_takes_longer_than_a_whole_point_is_a_timeout(runner, monkeypatch):
    monkeypatch.setattr(point_module, "LEAST_LIMIT", 0.0)
    seconds = {64: 0.01, 128: 9.0, 256: 0.01}
    monkeypatch.setattr(lane, "_seconds", lambda subject, device: seconds[subject.variants[0].shape.max_length])
    found = run(runner("softmax"))
    assert [found["softmax", n].outcome for n in (64, 128, 256)] == [Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT]
    assert "one sample takes 9 s" in found["softmax", 128].reason


def test_filling_the_state_of_a_decoding_is_progress(runner):
    found = run(runner("linear", "sweep[heads=1,head_dim=16,length=64,mode=decode]"))
    said = {event.key: event.of for event in runner.said if isinstance(event, TrainingProgress)}
    assert said == {record.key: 48 for record in found.values()}


@pytest.mark.slow
def test_a_red_gate_gives_no_number(runner, monkeypatch):
    class Red:
        property, detail, measured, allowed = "causal", "it sees the future", 1.0, 0.5

    monkeypatch.setattr(
        "attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: Red if spec.name == "linear" else None
    )
    found = run(runner("softmax,linear"))
    assert {found["linear", n].outcome for n in (64, 128, 256)} == {Outcome.INCORRECT}
    assert found["linear", 64].measurements == () and "causal: it sees the future" in found["linear", 256].reason
    # of what is not measured the reason is no part of the setting, by which a board tells Records of another preset
    measured, failed = found["softmax", 64], found["linear", 64]
    assert "timing_seconds" in measured.absent["energy_joules"] and not failed.absent
    assert measured.setting == failed.setting
    assert not table_of(list(found.values())).replaced


@pytest.mark.slow
def test_one_record_of_each_mode_keeps_its_own_times(runner):
    task = "sweep[heads=1,head_dim=16,length=64,mode=forward,step,decode]"
    found = _all(runner("softmax", task))
    modes = [r.cell.task.get("mode", "step") for r in found]
    assert modes == ["forward", "step", "decode"]
    for record, mode in zip(found, modes, strict=True):
        assert [m.name for m in record.measurements if m.name in (
            "forward_seconds", "step_seconds", "decode_seconds")] == [f"{mode}_seconds"]  # fmt: skip
    assert found[2].first("state_bytes").value == 2 * 16 * 4 * 64
    assert found[2].first("dense_flops").value == 4 * 64 * 16


def _all(runner):
    return [*runner.run(runner.plan(fetch=True)).values()]


@pytest.mark.slow  # of Records made by hand: tests/bench/board/test_length_board.py
def test_the_board_puts_lengths_side_by_side_with_growth_memory_and_distance_to_the_limit(runner):
    records = _all(runner("softmax,linear"))
    table = table_of(records)
    (board,) = boards_of_sweeps(table, board_keys(table))
    names = [column.name for column in board.columns]
    assert names[:5] == ["at_64", "at_128", "at_256", "mean", "crossover"]
    row = next(r for r in (*board.ranked, *board.unranked) if r.name == "linear")
    entries = dict(zip(names, row.entries, strict=True))
    peaks = {r.cell.variant.name: r.first("peak_bytes").value for r in records if r.cell.task.get("length") == 256}
    assert entries["peak_ratio"].value == peaks["linear"] / peaks["softmax"]
    assert 0.5 < entries["memory_exponent"].value < 1.5
    assert entries["exponent"].low <= entries["exponent"].value <= entries["exponent"].high
    assert entries["dividend"].value > 0 and entries["peak_share"].value > 0


@pytest.mark.slow
def test_the_longest_length_within_a_budget_is_found_in_child_processes(runner):
    shape = "heads=1,head_dim=16,mode=forward"
    task = f"sweep[{shape},length=64,128],sweep[{shape},memory_bytes=2000000]"
    records = _all(runner("softmax,softmax[impl=eager]", task))
    longest = {str(r.cell.variant): r.first("longest_length") for r in records if r.cell.task.get("memory_bytes")}
    eager = longest["softmax[impl=eager]"]
    # scores and weights, of 4 bytes each, are alive together
    expected = (2e6 / 8) ** 0.5
    assert eager.where == {"stopped": "memory", "mode": "forward", "memory_bytes": 2_000_000}
    assert 0.8 * expected <= eager.value <= expected
    # a fused kernel holds a few rows of scores for each thread
    assert longest["softmax"].value > 5 * eager.value
    table = table_of(records)
    (board,) = boards_of_sweeps(table, board_keys(table))
    assert [c.name for c in board.columns][-1] == "longest"
    shown = {row.name: row.entries[-1].value for row in (*board.ranked, *board.unranked)}
    assert shown == {name: m.value for name, m in longest.items()}


def test_a_variant_is_tried_at_the_shape_of_its_point():
    point = Spec.parse("sweep[causal=true,head_dim=16,length=512,level=layer]")
    shape = ShapeOf(task=point, preset=Spec("smoke"), device="cpu").answer(Reporter())
    assert (shape.causal, shape.head_dim, shape.max_length) == (True, 16, 512)
