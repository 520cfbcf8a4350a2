"""`attnbench controls`: one run a question, Records in a folder of their own, and one line a control."""

import json

import pytest
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.controls import all_controls
from attnbench.bench.wings.controls import controls as wing

MACHINE = Machine(id="here", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1)


@pytest.fixture
def runs(monkeypatch):
    """The calls of `run`, which trains nothing: each cell has a loss of 1 and an accuracy of 0.97."""
    calls = []

    def run(variants, tasks, *, preset, **options):
        calls.append((sorted(map(str, variants)), [str(task) for task in tasks], str(preset), options))
        cells = {cell for control in all_controls() for cell in control.cells}
        mine = [cell for cell in cells if cell.variant in variants and (cell.task, cell.preset) == (tasks[0], preset)]
        measured = (
            Measurement.of("accuracy", 0.97, split="test", length=64, pairs=8),
            Measurement.of("accuracy", 0.97, split="test", length=2048, pairs=16),
            Measurement.of("loss", 1.0, split="validation"),
        )
        return [
            Record(cell=cell, outcome=Outcome.OK, machine=MACHINE, measurements=measured, metric=METRICS["accuracy"])
            for cell in mine
        ]

    monkeypatch.setattr(wing, "run", run)
    return calls


def test_controls_on_one_question_are_one_run(runs, tmp_path) -> None:
    found = wing.controls("topk,window[size=8],fox", results=tmp_path)
    assert [(str(one.control.name), one.state) for one in found] == [
        ("topk", "passed"), ("window", "passed"), ("fox", "passed"),
    ]  # fmt: skip
    (identity, far) = runs
    assert identity[:3] == (["softmax", "topk", "window[size=32]"], ["max"], "control[steps=200]")
    assert far[:3] == (["fox"], ["recall"], "control[longest=2048,steps=4000]")
    assert identity[3]["results"] == tmp_path / "controls" and identity[3]["lanes"] == "train"
    assert identity[3]["seeds"] == 1


def test_a_name_without_parameters_asks_for_all_its_forms(runs, tmp_path) -> None:
    found = {str(one.control.name): one.state for one in wing.controls("delta", results=tmp_path)}
    assert set(found) == {
        "delta", "delta[decay=scalar]", "delta[decay=channel]", "delta[eigenvalues=signed]",
    }  # fmt: skip
    one = wing.controls("delta[decay=channel]", results=tmp_path)
    assert [each.control.name for each in one] == [Spec.parse("delta[decay=channel]")]


def test_all_variants_are_the_default(runs, tmp_path) -> None:
    assert len(wing.controls(results=tmp_path)) == len(all_controls())


def test_a_variant_without_a_control_is_refused(runs, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wing, "controls_of", lambda spec: ())
    with pytest.raises(SelectionError, match=r"softmax has no control; write one into a `controls.toml`"):
        wing.controls("softmax", results=tmp_path)


def test_the_command_prints_the_table_and_its_exit_code_tells(runs, tmp_path) -> None:
    # 97 % suffice for rela, and not for softmax
    good = CliRunner().invoke(app, ["controls", "rela", "--results", str(tmp_path)])
    assert good.exit_code == 0, good.output
    assert "97.0 %" in good.output and "1 controls: 1 passed, 0 failed, 0 never run" in good.output
    bad = CliRunner().invoke(app, ["controls", "rela,softmax", "--results", str(tmp_path), "--json"])
    assert bad.exit_code == 1
    assert {row["variant"]: row["state"] for row in json.loads(bad.stdout)} == {"rela": "passed", "softmax": "failed"}


@pytest.mark.slow  # two trainings of a few seconds, and none when repeated
def test_a_control_is_trained_once_and_resumes(tmp_path) -> None:
    found = [wing.controls("topk", results=tmp_path) for _ in range(2)]
    assert [one.state for results in found for one in results] == ["passed", "passed"]
    (file,) = (tmp_path / "controls" / "records").glob("*.jsonl")
    lines = file.read_text(encoding="utf-8").strip().split("\n")
    assert sorted(json.loads(line)["cell"]["variant"] for line in lines) == ["softmax", "topk"]
