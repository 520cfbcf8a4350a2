"""A run under a grid of learning rates: trials first, then training at the chosen rate, which the Record names."""

import json

import pytest
import torch

from attnbench.bench.core.cell import FIRST_TUNING_SEED, Cell, Job
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.options import options_of
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.events import CellFinished, LoggingListener
from attnbench.bench.run.lanes.train import train_cell
from attnbench.bench.run.questions import FindData
from attnbench.bench.run.runner import Runner
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.train.checkpoint import ValidationPoint
from attnbench.tasks.contract import DataPlace

GRID = "smoke[learning_rates=2e-3|8e-3]"
# validation accuracy by rate, and test accuracy, which would choose the other one
VALIDATION = {2e-3: 0.6, 8e-3: 0.9, 0.024: 0.95, 0.072: 0.5}


def finished(cell, job, machine, rate, outcome=Outcome.OK):
    store = Store(job.results)
    point = ValidationPoint(step=6, train_loss=1, validation_loss=1, validation=VALIDATION[rate], seconds=1.0)
    kept = {"curve": store.put_artifact(json.dumps([point.to_json("accuracy")]).encode(), ".json")}
    measured = (
        Measurement.of("accuracy", 1 - VALIDATION[rate], split="test", examples=100),
        Measurement.of("accuracy", VALIDATION[rate], split="validation", examples=500),
        Measurement.of("loss", 1.0, split="validation", examples=500),
        *([Measurement.of("learning_rate", rate)] if cell.lane == "train" else []),
    )
    return Record(
        cell=cell, outcome=outcome, reason="" if outcome is Outcome.OK else "no luck", machine=machine,
        measurements=measured if outcome is Outcome.OK else (), metric=METRICS["accuracy"], artifacts=kept,
        digest=job.digests[cell.key], started=f"2026-01-01T00:00:{len(list(store.records())):02}+00:00",
    )  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a selection; jobs are answered here, as a worker would. Returns the cells that were run, in order."""
    calls = []

    def make(fails=(), stop_after=None, seeds=1, retry=False, preset=GRID, lost=()):
        calls.clear()

        def answer(job, machine, **_):
            (cell,) = job.cells
            if stop_after is not None and len(calls) == stop_after:
                raise KeyboardInterrupt
            rate = job.rates[cell.key] if cell.lane == "train" else cell.preset.get("learning_rate")
            calls.append((cell.lane, rate, cell.seed))
            if rate in lost:
                return
            yield CellFinished(finished(cell, job, machine, rate, Outcome.CRASHED if rate in fails else Outcome.OK))

        monkeypatch.setattr("attnbench.bench.run.executors.local.run_job", answer)
        monkeypatch.setattr(FindData, "answer", lambda self, reporter: None)
        options = options_of("softmax", "lra-text", preset=preset, seeds=seeds, results=tmp_path, device="cpu",
                             threads=torch.get_num_threads(), lanes="train", retry=retry)  # fmt: skip
        make.records = Runner(options=options, listener=LoggingListener()).run_all()
        return list(calls)

    make.calls = calls
    return make


def test_trials_choose_the_rate_that_all_seeds_train_at(run, tmp_path):
    trials = [("tune", 2e-3, FIRST_TUNING_SEED), ("tune", 8e-3, FIRST_TUNING_SEED)]
    assert run(seeds=2) == [*trials, ("train", 8e-3, 0), ("train", 8e-3, 1)]
    assert run(seeds=2) == []
    trained = [r for r in Store(tmp_path).records() if r.cell.lane == "train"]
    assert {r.first("learning_rate").value for r in trained} == {8e-3}


def test_a_run_that_is_stopped_at_any_cell_ends_with_the_same_choice(run):
    whole = [("tune", 2e-3, 100), ("tune", 8e-3, 100), ("train", 8e-3, 0), ("train", 8e-3, 1)]
    for cell in whole[:3]:
        with pytest.raises(KeyboardInterrupt):
            run(stop_after=1, seeds=2)
        assert run.calls == [cell]
    assert run(seeds=2) == whole[3:]


def test_a_rate_that_fails_is_not_chosen(run):
    assert run(fails=[8e-3])[-1] == ("train", 2e-3, 0)


def test_where_every_rate_fails_the_cell_gets_the_outcome_untried(run, tmp_path):
    assert [lane for lane, *_ in run(fails=[2e-3, 8e-3])] == ["tune", "tune"]
    (record,) = [r for r in Store(tmp_path).records() if r.cell.lane == "train"]
    assert record.outcome is Outcome.CRASHED
    assert record.reason == "at every learning rate (0.002, 0.008): no luck"
    assert run() == []
    # the trials and then the training are tried again
    assert run(retry=True) == [("tune", 2e-3, 100), ("tune", 8e-3, 100), ("train", 8e-3, 0)]


EXTENDED = "smoke[learning_rates=2e-3|8e-3,rate_extensions=2]"


def test_rates_beyond_the_grid_are_tried_before_all_training(run, tmp_path):
    whole = [("tune", rate, 100) for rate in (2e-3, 8e-3, 0.024, 0.072)] + [("train", 0.024, seed) for seed in (0, 1)]
    assert run(seeds=2, preset=EXTENDED) == whole
    assert [record.cell.lane for record in run.records.records].count("tune") == 4 and not run.records.missing
    assert {record.first("learning_rate").value for record in run.records.records if record.cell.lane == "train"} == {
        0.024
    }
    assert run(seeds=2, preset=EXTENDED) == []


def test_a_search_that_is_stopped_goes_on_where_it_was(run):
    for number in range(4):
        with pytest.raises(KeyboardInterrupt):
            run(stop_after=1, preset=EXTENDED)
        assert run.calls == [("tune", (2e-3, 8e-3, 0.024, 0.072)[number], 100)]
    assert run(preset=EXTENDED) == [("train", 0.024, 0)]


def test_a_trial_beyond_the_grid_that_is_lost_leaves_training_to_a_later_command(run):
    assert run(preset=EXTENDED, lost=[0.024])[-1] == ("tune", 0.024, 100)
    assert [cell.lane for cell in run.records.missing] == ["tune", "train"]
    assert run(preset=EXTENDED)[0] == ("tune", 0.024, 100) and run.calls[-1] == ("train", 0.024, 0)


def test_trials_are_on_no_board(run, tmp_path):
    run(seeds=3)
    table = table_of(Store(tmp_path).records())
    assert [key.preset for key in board_keys(table)] == ["smoke[learning_rates=0.002|0.008]"]
    (key,) = board_keys(table)
    assert {row.lane for row in key.runs(table, "train", "time", "baseline")} == {"train"}


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    # the gate has tests of its own
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)
    books = tmp_path / "root" / "gutenberg"
    books.mkdir(parents=True)
    (books / "poem.txt").write_text("the moon is round, the sun is round. " * 60, encoding="utf-8")
    place = DataPlace(root=books.parent, cache=tmp_path / "cache", offline=True, notice=lambda text: None)
    store = Store(tmp_path / "results", lambda text: None)
    return WorkerContext(job=Job(id="", cells=(), digests={}), place=place, store=store, send=lambda event: None)


@pytest.mark.slow
def test_the_lane_trains_at_the_chosen_rate_and_names_it(context):
    def trained(preset, lane, rate=None):
        name = f"smoke[steps=4,evaluate_every=2,layers=1,{preset}]"
        cell = Cell(variant=Spec("softmax"), task=Spec("gutenberg-char"), preset=Spec.parse(name), lane=lane)
        # a checkpoint of the same cell would be resumed
        context.job.digests[cell.key] = f"a-b-{rate}"
        context.job.rates.clear()
        context.job.rates.update({} if rate is None else {cell.key: rate})
        record = train_cell(context, cell)
        assert record.outcome is Outcome.OK, record.reason
        return record

    grid = "learning_rates=2e-3|8e-3"
    high, low = trained(grid, "train", 8e-3), trained(grid, "train", 2e-3)
    alone, trial = (trained("learning_rate=8e-3", lane) for lane in ("train", "tune"))
    bits = [record.first("bits_per_character", split="test").value for record in (high, low, alone, trial)]
    assert bits[0] == bits[2] == bits[3] != bits[1]
    assert [record.first("learning_rate") and record.first("learning_rate").value for record in (high, low, alone)] == [
        8e-3, 2e-3, None,
    ]  # fmt: skip
    # all variants of a board share one setting, whatever their rates
    assert high.setting == low.setting and tuple(high.setting["learning_rates"]) == (2e-3, 8e-3)
    assert "predictions" in high.artifacts and set(trial.artifacts) == {"curve"}
    assert trial.first("sparsity") is None and high.first("sparsity") is not None
