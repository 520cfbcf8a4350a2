"""`attnbench choose` and `attnbench.choose`: the variants that meet some limits."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attnbench
from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.store.store import Store
from attnbench.bench.wings.choose.choose import lengths_to_choose_at

RESULTS = str(Path(__file__).parents[4] / "results")


@pytest.fixture
def results(bench, tmp_path: Path) -> Path:
    """Three seeds of two variants on one task, and timings of a sweep."""
    b, swept = bench(), bench(task="sweep")
    for name, share in (("softmax", 0.6), ("rela", 0.7)):
        b.train(name, [], correct=[(np.arange(500) < share * 500).astype(np.uint8)] * 3)
    for name, factor in (("softmax", 1.0), ("linear", 0.5)):
        swept.time(name, [factor] * 5, [1.0] * 5)
    store = Store(tmp_path / "results")
    for record in (*b.records, *swept.records):
        store.append(record)
    return tmp_path / "results"


def test_the_cheapest_variant_of_a_length_leads(results: Path) -> None:
    board = attnbench.choose("512", results, task="sweep")
    assert [row.name for row in board.ranked] == ["linear", "softmax"]
    assert attnbench.choose(512, results, task="sweep") == board
    # the machine is that of the costs; the task was not timed there
    assert attnbench.choose(512, results, task="lra-text", machine="box-1").ranked
    assert lengths_to_choose_at(results, task="lra-text", machine="box-1") == {"step": [512]}


@pytest.mark.parametrize(
    ("length", "options", "words"),
    [
        ("long", {}, "a length such as 512 or 16k"),
        ("\u0661\u0660\u0662\u0664", {}, "a length such as 512 or 16k"),
        ("32k", {}, "at length 32,768"),
        ("1k", {"memory": "much"}, "a size such as"),
    ],
)
def test_a_wrong_length_or_size_is_refused_in_words(results: Path, length: str, options: dict, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        attnbench.choose(length, results, **options)


def test_choose_without_a_length_shows_what_it_can_answer(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["choose", "--results", RESULTS])
    assert shown.exit_code == 0 and "a training step at 128, 192, 256, 512" in shown.output
    command = shown.output.split("`attnbench choose --length ")[1].split("`")[0]
    answer = CliRunner().invoke(app, ["choose", "--length", *shlex.split(command)])
    assert answer.exit_code == 0 and "Which attention costs least" in answer.output
    shown = CliRunner().invoke(app, ["choose", "--results", RESULTS, "--mode", "decode"])
    assert "--mode decode" in shown.output
    # trainings alone
    (tmp_path / "records").mkdir()
    (committed,) = Path(RESULTS, "facts", "records").glob("eb2a*.jsonl")
    trainings = [line for line in committed.read_text().split("\n") if '"task":"parity"' in line]
    (tmp_path / "records" / committed.name).write_text("\n".join(trainings) + "\n")
    shown = CliRunner().invoke(app, ["choose", "--results", str(tmp_path), "--mode", "decode"])
    assert f"mode=decode]' --results {tmp_path}" in shown.output
