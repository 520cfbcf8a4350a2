"""Estimates of cost from counted work, for machines and tasks of which nothing has run."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_kernels import require_kernels
from typer.testing import CliRunner

import attnbench
from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import recipe_facts
from attnbench.bench.plan.options import load_suite
from attnbench.bench.process.ask import asking
from attnbench.bench.run import estimate
from attnbench.bench.run.estimate import (
    COUNTED_LENGTHS,
    USUAL_CARDS,
    CountWork,
    Estimator,
    Rates,
    at_length,
    machines,
    rates_of,
)
from attnbench.bench.run.executors.local import LocalExecutor, planned_resources
from attnbench.tasks.data import prepared
from attnbench.variants.contract import AttentionShape

RESULTS = Path(__file__).parents[3] / "results"


def shape(length: int = 512) -> AttentionShape:
    return AttentionShape(heads=2, head_dim=16, max_length=length)


def test_softmax_counts_the_products_of_its_formula_at_any_length() -> None:
    counted = CountWork(Spec("softmax"), shape()).answer(None)
    for length in (*COUNTED_LENGTHS, 4096, 16_384):
        # two products of n x n x d forward; PyTorch's fused backward makes the scores once more
        expected = 4 * length**2 * 16 * (1 + 2.5)
        assert at_length(counted, length)[0] == pytest.approx(expected, rel=1e-6)


def test_linear_attention_grows_with_the_length_and_softmax_with_its_square() -> None:
    grown = {}
    for name in ("linear", "softmax"):
        counted = CountWork(Spec(name), shape()).answer(None)
        grown[name] = at_length(counted, 16_384)[0] / at_length(counted, 8_192)[0]
    assert grown["linear"] == pytest.approx(2, rel=0.05) and grown["softmax"] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("name", ["nsa", "stick-breaking", "entmax15-package"])
def test_what_refuses_the_shape_or_cannot_run_here_has_no_cost(name: str) -> None:
    assert CountWork(Spec.parse(name), shape()).answer(None) is None


EITHER = ("rela", "entmax15", "entmax[alpha=learned]", "topk[k=20]", "local", "local[relative=true]", "differential",
          "sigmoid", "relative", "longformer")  # fmt: skip
CAUSAL = (*EITHER, "gated-linear", "delta", "delta[decay=channel]", "ssd")


@pytest.mark.parametrize(("name", "causal"), [*((name, False) for name in EITHER), *((name, True) for name in CAUSAL)])
def test_kernels_that_only_stand_in_are_counted_as_those_that_run(
    name: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kernels()
    work = CountWork(Spec.parse(name), AttentionShape(heads=2, head_dim=24, max_length=512, causal=causal))
    stood_in = work.answer(None)
    monkeypatch.setattr(estimate, "uncompiled", nullcontext)
    assert stood_in is not None and stood_in == work.answer(None)
    # a map that is traced at the first pass counts nowhere
    calls = [counts[2] for counts in stood_in]
    assert calls == sorted(calls)


@pytest.mark.slow  # a whole command without a cache
def test_a_plan_compiles_nothing_on_a_fresh_machine(tmp_path: Path) -> None:
    words = ["plan", "--variants", "rela,entmax15[impl=cpp]", "--task", "sweep", "--results", str(tmp_path / "results")]
    variables = {"HOME": str(tmp_path), "ATTNBENCH_CACHE": "", "XDG_CACHE_HOME": ""}
    command = [sys.executable, "-m", "attnbench", *words]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert "3 cells, 3 to run" in done.stdout and "building" not in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_seconds_add_products_copies_and_calls() -> None:
    rates = Rates(name="x", float32=100.0, bfloat16=1000.0, bytes=10.0, call_seconds=0.5)
    assert rates.seconds(np.array([200, 30, 4])) == 2 + 3 + 2
    assert rates.seconds(np.array([200, 30, 4]), "bfloat16") == pytest.approx(0.2 + 3 + 2)


@pytest.fixture(autouse=True)
def asked_once() -> Iterator[None]:
    with asking():
        yield


def test_a_timing_makes_three_rounds_beyond_the_seconds_of_its_preset(tmp_path: Path) -> None:
    words = ["plan", "--variants", "softmax", "--task", "sweep", "--device", "cuda", "--results", str(tmp_path)]
    assert "and take longer where three rounds do." in " ".join(CliRunner().invoke(app, words).output.split())
    made = attnbench.plan("softmax", "sweep[length=1024,32768,131072]", device="cpu", threads=2, results=tmp_path)
    short, long, too_long = (step.seconds or 0.0 for step in made.steps)
    # beyond the limit of one sample it is given up after the first ones
    assert 5 < short < 60 and 240 < long < 900 and too_long < 2 * long


def near(blocks: Iterable[list[Any]]) -> Iterator[bool]:
    """Whether estimates are right within a factor of 2, of cells trained alone or timed by one clock, the latest."""
    for block in blocks:
        resources = planned_resources(load_suite("smoke-all").executor, block[0].machine.threads)
        object.__setattr__(resources, "device", torch.device("cpu"))
        counted = [record.cell for record in block if "packag" not in str(record.cell)]
        variants = [cell.variant for cell in counted]
        if seconds := sum(Estimator(resources)(cell, variants).get("processor", 0.0) for cell in counted):
            yield 0.5 < seconds / max(record.seconds for record in block) < 2


@pytest.mark.slow
def test_four_of_five_committed_trainings_lie_within_a_factor_of_two() -> None:
    """One seed of each question, variant and machine of the committed Records, by as many steps as they made."""
    kept: dict[Any, list[Any]] = {}
    for record in attnbench.records(RESULTS):
        cell = record.cell
        if cell.lane == "train" and record.outcome == "ok" and "packag" not in str(cell) and "impl" not in str(cell):
            # synthetic presets train until solved now, and made a quarter of these steps
            if recipe_facts(cell.task, cell.preset).setting["steps"] != record.setting["steps"]:
                steps = dict(cell.preset.parameters) | {"steps": record.setting["steps"]}
                record = replace(record, cell=replace(cell, preset=Spec.of(cell.preset.name, **steps)))
            kept[cell.task, cell.variant, cell.preset, record.machine.id, record.machine.threads] = [record]
    found = list(near(kept.values()))
    assert len(kept) > 70 and len(found) > 0.95 * len(kept) and sum(found) >= 0.8 * len(found), sum(found)


@pytest.mark.slow
def test_nine_of_ten_committed_timings_lie_within_a_factor_of_two() -> None:
    kept: dict[Any, list[Any]] = {}
    for record in attnbench.records(RESULTS):
        if record.cell.lane == "time" and record.cell.preset.name in ("quick", "record"):
            kept.setdefault(record.block, []).append(record)
    found = list(near(kept.values()))
    assert len(found) == len(kept) > 40 and sum(found) >= 0.9 * len(found), (sum(found), len(found))


def test_a_timing_of_a_model_is_of_all_its_layers(tmp_path: Path) -> None:
    presets = [f"quick[timing_seconds=1000.0,layers={layers}]" for layers in (1, 4)]
    one, four = (
        attnbench.plan("linear", "lra-listops", preset=preset, lanes="time", device="cpu", results=tmp_path).seconds
        for preset in presets
    )
    assert one and four and four > 2.5 * one


def test_variants_that_only_look_back_have_an_estimate_of_their_decoding(tmp_path: Path) -> None:
    made = attnbench.plan("gated-linear", "sweep[mode=decode]", device="cpu", results=tmp_path)
    assert all(step.seconds for step in made.steps)


def test_a_committed_timing_of_the_suite_sweep_lies_within_a_factor_of_two(tmp_path: Path) -> None:
    variants = load_suite("sweep").variants
    for point, seconds in (("length=4096", 300), ("length=256,mode=forward", 13), ("length=512,level=block", 68),
                           ("length=2048,mode=decode", 13)):  # fmt: skip
        made = attnbench.plan(variants, f"sweep[{point}]", device="cpu", threads=2, results=tmp_path)
        assert seconds / 2 < made.seconds < 2 * seconds, point


def test_a_plan_for_a_gpu_answers_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(LocalExecutor, "submit", lambda *_: pytest.fail("a plan runs nothing"))
    words = ["plan", "--variants", "rela", "--task", "lra-text", "--preset", "lra-paper", "--device", "cuda"]
    said = CliRunner().invoke(app, [*words, "--results", str(tmp_path)])
    assert said.exit_code == 0, said.exception
    words = " ".join(said.output.split())
    assert all(f"on one {rates_of(each).name}" in words for each in USUAL_CARDS) and "twice that at 4,096" in words
    with pytest.raises(attnbench.AttnbenchError, match="sees 0 CUDA devices"):
        attnbench.run("rela", "recall", device="cuda", results=tmp_path)


def test_a_plan_for_a_card_by_name_is_for_that_card_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # also where there is another one
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    words = ["plan", "--variants", "rela", "--task", "recall", "--device", "h200", "--results", str(tmp_path)]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.exception
    assert "on one NVIDIA H200\n" in said.output and "A100" not in said.output
    with pytest.raises(SelectionError, match="'h200' names a card for `plan` and `choose`; run on one of them with"):
        attnbench.run("rela", "recall", device="h200", results=tmp_path)


def test_the_data_of_many_points_is_one_line(tmp_path: Path) -> None:
    words = ["plan", "--variants", "linear", "--task", "sweep[length=256..4096],recall,sweep[mode=decode]"]
    said = CliRunner().invoke(app, [*words, "--lanes", "time", "--results", str(tmp_path)]).output
    assert [line for line in said.split("\n") if "data" in line] == [
        "data of sweep: synthetic: drawn at random from a seed",
        "data of recall: regenerated: drawn from a seed by attnbench's own generator, recall version 2",
    ]


def test_a_decoding_counts_the_tokens_before_its_samples(tmp_path: Path) -> None:
    task = "sweep[mode=decode,length=1024,32768]"
    made = {name: attnbench.plan(name, task, device="cpu", results=tmp_path) for name in ("softmax", "additive")}
    # each token reads those before it, and that of softmax is its key and value alone
    assert made["softmax"].seconds < 60 and made["additive"].seconds > 4 * made["softmax"].seconds


def test_a_slower_machine_takes_longer() -> None:
    work = np.array([1e15, 1e12, 10])
    times = [each.seconds(work, "bfloat16") for each in machines("cuda", 1)]
    assert all(one < other for one, other in itertools.pairwise(times))
    assert machines("cpu", 8)[0].seconds(work) < machines("cpu", 1)[0].seconds(work)


def test_a_plan_prepares_no_data_and_all_six_tasks_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(prepared, "_write", lambda *_: pytest.fail("a plan prepares nothing"))
    made = attnbench.plan(suite="lra", preset="lra-paper", results=tmp_path / "results")
    tasks = {step.cell.task.name for step in made.left}
    assert tasks == {"lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder", "lra-pathx"}
    assert made.unknown == 0 and made.data[Spec("lra-pathfinder")] is None
    words = ["plan", "--suite", "lra", "--preset", "pt-2x64", "--device", "cpu", "--results", str(tmp_path / "results")]
    said = CliRunner().invoke(app, words).output
    assert "data of lra-retrieval: not prepared; `run` tries nothing; `attnbench data list lra-retrieval`" in said
    assert "count as to run; `run` leaves out lra-retrieval, whose data nothing gives." in said
    assert "data of lra-image: not prepared; `run` tries official: download of cifar-10" in said
    assert "data get 'lra-pathx[examples=200000]'" in " ".join(said.split())
    assert "cells, 175 to run: about a year or more\n" in said and "`--device cuda` tells" in said
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_task_of_a_suite_without_the_preset_is_named_and_stops_nothing(tmp_path: Path) -> None:
    class Told:
        notices: list[str] = []

        def notice(self, text: str) -> None:
            self.notices.append(text)

        def progress(self, what: str, done: int, total: int) -> None:
            pytest.fail(f"a plan works on no data: {what}")

    made = attnbench.plan(suite="lra", preset="quick", device="cpu", results=tmp_path, progress=Told())
    assert len({step.cell.task.name for step in made.steps}) == 5
    assert any("lra-pathx is left out" in text and "preset 'quick'" in text for text in Told.notices)


def test_slurm_is_asked_for_before_any_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("attnbench.bench.run.runner.ask", lambda *_, **__: pytest.fail("it asked for data"))
    with pytest.raises(SelectionError, match="expected a machine that can submit to slurm"):
        attnbench.run("rela", "lra-pathfinder", preset="pt-2x64", executor="slurm", results=tmp_path)
    monkeypatch.undo()
    assert attnbench.plan("rela", "recall", executor="slurm", results=tmp_path).steps
