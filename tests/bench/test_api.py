"""The Python interface: the same flow as on the command line, from names to Records, Boards and reports."""

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import attnbench
from attnbench.bench.api.pages import reports
from attnbench.bench.core.errors import AttnbenchError, SelectionError, StoreError
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec, specs_of
from attnbench.bench.gate.report import SETTINGS
from attnbench.bench.run.events import CellFinished, LoggingListener
from attnbench.bench.store.records import Records
from attnbench.bench.store.store import Store
from attnbench.variants.maps.rela import ReLA


@pytest.fixture
def results(bench, tmp_path: Path) -> Path:
    """Three seeds of two variants on one task, timings of a sweep, and one failure."""
    b, swept = bench(), bench(task="sweep")
    for name, share in (("softmax", 0.6), ("rela", 0.7)):
        b.train(name, [], correct=[(np.arange(500) < share * 500).astype(np.uint8)] * 3)
    b.add(b.cell("linear"), outcome=Outcome.TIMEOUT, reason="over the time limit")
    for name, factor in (("softmax", 1.0), ("linear", 0.5)):
        swept.time(name, [factor] * 5, [1.0] * 5)
    store = Store(tmp_path / "results")
    for record in (*b.records, *swept.records):
        store.append(record)
    return tmp_path / "results"


def test_every_public_name_is_there_and_explains_itself():
    for name in attnbench.__all__:
        assert (inspect.getdoc(getattr(attnbench, name)) or "").endswith((".", "+SKIP")), name
    with pytest.raises(AttributeError, match="has no attribute 'bords'"):
        attnbench.bords  # noqa: B018


def test_the_root_works_under_the_name_of_another_folder(tmp_path):
    (tmp_path / "clone").symlink_to(Path(attnbench.__file__).parent)
    script = (
        "import sys, clone; clone.boards; print('clone.bench.api.boards' in sys.modules, 'attnbench' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], env=os.environ | {"PYTHONPATH": str(tmp_path)},
                         capture_output=True, text=True)  # fmt: skip
    assert run.stdout == "True False\n", run.stderr


@pytest.mark.parametrize(
    "names", ["rela,local[window=64,128]", ["rela", "local[window=64..128]"], (Spec("rela"), "local[window=64,128]")]
)
def test_names_are_text_or_specs_one_or_several(names):
    assert [str(spec) for spec in specs_of(names)] == ["rela", "local[window=64]", "local[window=128]"]
    assert specs_of(Spec.of("local", window=64)) == (Spec.of("local", window=64),)


def test_records_of_a_folder_with_their_failures(results):
    found = attnbench.records(results)
    assert len(found) == 9 and [record.outcome for record in found.failures] == ["timeout"]
    assert repr(found) == f"<9 Records in {results}: 8 ok, 1 timeout>"
    assert found[0] in found and found[:2] == (found[0], found[1])
    assert len(attnbench.records(results / "nothing")) == 0


def test_records_become_a_table_of_measurements_that_keeps_failures(results):
    table = attnbench.records(results).to_pandas()
    tested = table[(table["name"] == "accuracy") & (table["split"] == "test")]
    assert tested.groupby("variant")["value"].mean().to_dict() == pytest.approx({"softmax": 0.6, "rela": 0.7})
    assert set(tested["unit"]) == {"fraction"} and sorted(set(tested["seed"])) == [0, 1, 2]
    (failed,) = table[table["outcome"] != "ok"].to_dict("records")
    assert (failed["variant"], failed["reason"]) == ("linear", "over the time limit")
    assert len(table) == 1 + sum(len(record.measurements) for record in attnbench.records(results))


def test_boards_of_a_folder_and_filters(results):
    boards = attnbench.boards(results)
    titles = [board.title for board in boards]
    assert titles == ["lra-text, preset quick", "sweep, preset quick: a training step at length 512"]
    assert [report.board for report in reports(results)] == boards and len(reports(results, task="sweep")) == 1
    (board,) = attnbench.boards(results, task="lra-text")
    assert {row.name for row in board.ranked} == {"softmax", "rela"}
    # what was only timed is ranked by its cost
    assert [row.name for row in boards[1].ranked] == ["linear", "softmax"]
    (average,) = attnbench.boards(results, suite="lra")
    assert "lra-listops" in average.unranked[0].reason
    with pytest.raises(SelectionError, match="there are Records of: lra-text, sweep"):
        attnbench.boards(results, task="lra-listops")
    with pytest.raises(StoreError, match="no Records in"):
        attnbench.boards(results / "nothing")


def test_boards_of_records_are_those_that_they_answer(results, bench):
    # another preset, which a filter by the name `quick` would not leave out
    other = bench(preset="quick[steps=9]")
    other.train("softmax", [0.5, 0.5, 0.5])
    store = Store(results)
    for record in other.records:
        store.append(record)
    found = attnbench.records(results)
    assert len(attnbench.boards(found)) == 3
    trained = Records(results=results, records=found[:2])
    assert [board.title for board in attnbench.boards(trained)] == ["lra-text, preset quick"]
    timed = Records(results=results, records=tuple(r for r in found if r.cell.lane == "time"))
    assert [board.title for board in attnbench.boards(timed)] == ["sweep, preset quick: a training step at length 512"]


def test_what_cannot_be_read_is_told(results, caplog):
    (file, *_) = (results / "records").glob("*.jsonl")
    with file.open("a") as lines:
        lines.write("no JSON\n")
    told: list[str] = []
    assert len(attnbench.records(results, notice=told.append)) == 9
    assert len(told) == 1 and "was skipped" in told[0]
    with caplog.at_level(logging.WARNING, "attnbench"):
        attnbench.records(results)
    assert [record.message for record in caplog.records] == told


def test_check_reports_what_holds_and_what_fails(monkeypatch):
    from torch import Tensor

    from attnbench.variants.contract import Variant

    class Leaky(Variant):
        """Looks at padding."""

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: object) -> Tensor:
            return value.mean(-2, keepdim=True).expand_as(query)

    monkeypatch.setattr("attnbench.bench.gate.report.LENGTH", 24)
    # one way of use: tests of the gate run them all
    monkeypatch.setattr("attnbench.bench.gate.report.SETTINGS", SETTINGS[:1])
    report = attnbench.check("softmax")
    assert report and not report.failures and str(report).startswith("softmax: ")
    leaky = attnbench.check(Leaky)
    assert not leaky and leaky.name == "Leaky"
    assert {"padding content", "padding length"} <= {result.property for result in leaky.failures}
    with pytest.raises(SelectionError, match="did you mean 'softmax'"):
        attnbench.check("sofmax")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("rela",), {}, "expected variants and a task, or a suite"),
        (("rela", "sweep"), {"lanes": "timed"}, "expected lanes among train, time, baseline"),
        (("rela", "sweep"), {"selection": "train"}, "expected selection to be validation or test"),
        (("rela", "lra-text"), {"memory_budget": "1GiB"}, "a memory budget is for sweeps"),
    ],
)
def test_a_wrong_option_is_one_error_with_advice(arguments, options, message, tmp_path):
    with pytest.raises(AttnbenchError, match=message):
        attnbench.plan(*arguments, results=tmp_path, **options)


def test_baselines_without_variants_are_planned_alone(tmp_path):
    made = attnbench.plan(tasks="lra-listops", lanes="baseline", preset="smoke", results=tmp_path, device="cpu")
    assert [str(step.cell.variant) for step in made.left] == ["majority", "root-operator", "root-and-literals"]
    assert not made.notices


def test_a_plan_needs_no_data_and_writes_nothing(tmp_path):
    made = attnbench.plan("rela", "sweep[length=64,128]", preset="smoke", results=tmp_path / "r", device="cpu")
    assert [str(step.cell.variant) for step in made.left] == ["softmax", "rela"] * 2
    assert [data.fidelity for data in made.data.values()] == ["synthetic"] * 2
    assert not (tmp_path / "r").exists()


def test_compare_answers_and_names_a_variant_without_any_record_with_those_that_are_near(results):
    (comparison,) = attnbench.compare("rela", results=results, task="lra-text")
    assert comparison.points.value == pytest.approx(10.0)
    # a default that is written out names the same variant
    assert attnbench.compare("rela[impl=auto]", results=results, task="lra-text") == [comparison]
    with pytest.raises(SelectionError, match=r"no Records of 'rleas' .did you mean .*'rela'"):
        attnbench.compare("rela", "rleas", results)


def test_the_log_says_what_a_training_reached_and_why_one_has_no_result(bench, caplog):
    b = bench()
    b.train("rela", [0.6174], seconds=12.4)
    b.add(b.cell("linear"), outcome="crashed", reason="boom")
    with caplog.at_level("INFO", "attnbench"):
        for record in b.records:
            LoggingListener().on_event(CellFinished(record))
    (trained, crashed) = caplog.records
    assert trained.levelname == "INFO" and "61.7%" in trained.getMessage()
    assert crashed.levelname == "WARNING" and "boom" in crashed.getMessage()


@pytest.mark.slow
def test_run_returns_the_records_of_the_selection_made_now_or_before(tmp_path):
    options = {"preset": "smoke[timing_seconds=0.2]", "results": tmp_path, "device": "cpu", "threads": 1}
    listener = Mock(LoggingListener())
    first = attnbench.run("rela", "sweep[length=32,heads=1]", progress=listener, **options)
    assert [str(record.cell.variant) for record in first] == ["softmax", "rela"]
    assert list(first.measured) == list(first) and not first.failures
    events = [type(call.args[0]).__name__ for call in listener.on_event.call_args_list]
    assert listener.begin.call_count == 1 and events.count("CellFinished") == 2
    again = attnbench.run("rela", "sweep[length=32,heads=1]", **options)
    assert list(again) == list(first) and again.measured == ()
    (board,) = attnbench.boards(again)
    assert {row.name for row in (*board.ranked, *board.unranked)} == {"softmax", "rela"}


SCRIPT = """
from torch import Tensor
import attnbench
from attnbench.variants.contract import masked_softmax, score_map

@score_map(equation="P = softmax(S / 2)", paper="not published")
def halved(scores: Tensor, allowed: Tensor | None) -> Tensor:
    "Softmax of half the scores."
    return masked_softmax(scores / 2, allowed)

if __name__ == "__main__":
    attnbench.register("halved", halved)
    found = attnbench.run("halved", "sweep[length=32,heads=1]", preset="smoke[timing_seconds=0.2]",
                          results="results", device="cpu", threads=1)
    print([(str(record.cell.variant), str(record.outcome)) for record in found])
"""


@pytest.mark.slow
def test_a_script_names_a_variant_of_its_own_and_runs_it(tmp_path):
    (tmp_path / "my_script.py").write_text(SCRIPT)
    run = subprocess.run([sys.executable, "my_script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == "[('softmax', 'ok'), ('halved', 'ok')]\n", run.stderr


def test_a_name_is_registered_once_and_for_a_class_that_workers_can_import(monkeypatch):
    for variable in ("ATTNBENCH_VARIANTS", "PYTHONPATH"):
        monkeypatch.setenv(variable, "")
    VARIANTS.__dict__.pop("_found", None)
    try:
        attnbench.register("logged-again", ReLA)
        attnbench.register("logged-again", ReLA)
        assert os.environ["ATTNBENCH_VARIANTS"] == "logged-again=attnbench.variants.maps.rela:ReLA"
        assert VARIANTS.load("logged-again") is ReLA
        with pytest.raises(SelectionError, match="named 'softmax' is there already"):
            attnbench.register("softmax", ReLA)
        with pytest.raises(SelectionError, match="at the top level of a file"):
            attnbench.register("inner", type("Inner", (ReLA,), {"__qualname__": "f.<locals>.Inner"}))
        for target, named in ((Records, "the class Records"), (len, "a builtin_function_or_method"), ("rela", "a str")):
            with pytest.raises(SelectionError, match=f"got {named}; any module or function runs as it is"):
                attnbench.register("none", target)
    finally:
        VARIANTS.__dict__.pop("_found", None)
