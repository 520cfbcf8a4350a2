"""The script that plants faults: it finds a place again in another file, changes that alone, and says what is gone."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
SOURCE = """
class Line:
    def at(self, x):
        # "é" takes two bytes
        y = "é" and self.slope * x + 1
        if y < 0:
            self.cut(y)
        return y
"""


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import mutate

    yield mutate
    del sys.modules["mutate"]


def test_each_change_of_a_statement_is_one_place(mutate):
    found = [
        (text.partition(":")[0], kind)
        for _, text, statement, parts in mutate.statements(SOURCE)
        for kind, _ in mutate.changes(statement, parts)
    ]
    assert found == [
        ("Assign", "operator"), ("Assign", "operator"), ("Assign", "operator"), ("Assign", "constant"),
        ("If", "comparison"), ("If", "constant"), ("Expr", "dropped"),
    ]  # fmt: skip


def test_a_fault_is_planted_wherever_the_statement_stands_now(mutate):
    place = mutate.Place("one", "line.py", "Line.at", "If: y < 0", "comparison")
    for source in (SOURCE, f"import os\n\n{SOURCE}"):
        assert mutate.planted(source, place) == source.replace("if y < 0:", "if (y <= 0):")
    plus = mutate.Place("two", "line.py", "Line.at", "Assign: y | 'é' and self.slope * x + 1", "constant", 3)
    assert mutate.planted(SOURCE, plus) == SOURCE.replace('"é" and self.slope * x + 1', "('é' and self.slope * x + 2)")
    dropped = mutate.Place("three", "line.py", "Line.at", "Expr: self.cut(y)", "dropped")
    assert mutate.planted(SOURCE, dropped) == SOURCE.replace("self.cut(y)", "pass")
    written = replace(dropped, change="written", new="self.cut(0)")
    assert mutate.planted(SOURCE, written) == SOURCE.replace("self.cut(y)", "self.cut(0)")


def test_a_changed_statement_is_gone(mutate):
    place = mutate.Place("one", "line.py", "Line.at", "If: y < 0", "comparison")
    assert mutate.planted(SOURCE.replace("y < 0", "y < 1"), place) is None
    assert mutate.planted(SOURCE.replace("def at", "def of"), place) is None


def test_a_place_is_found_under_new_names_and_in_another_file(mutate):
    place = mutate.Place("one", "line.py", "Line.at", "If: y < 0", "comparison")
    later = SOURCE.replace("def at", "def cross").replace("y < 0", "level < 0")
    names = {"y": "level", "at": "cross"}
    found = mutate.located(place, mutate.Sources({"line.py": later}), names)
    assert mutate.planted(later, found) == later.replace("if level < 0", "if (level <= 0)")
    assert mutate.located(place, mutate.Sources({"line.py": later}), {}) is None
    assert mutate.located(place, mutate.Sources({"line.py": "", "lines/line.py": SOURCE}), {}) == replace(
        place, file="lines/line.py"
    )
    # which of two functions it was nobody knows
    assert mutate.located(place, mutate.Sources({"a.py": SOURCE, "b.py": SOURCE}), {}) is None


def test_tests_of_the_same_folder_come_first_and_a_killer_is_found_where_it_is_now(mutate):
    place = mutate.Place("one", "bench/core/line.py", "Line.cut", "If: y < 0", "comparison")
    files = {
        "tests/bench/core/test_line.py": "def test_cut(): ...",
        "tests/bench/core/test_files.py": "",
        "tests/bench/cli/test_run.py": "line.cut()",
        "tests/tasks/test_text.py": "lines",
    }
    assert mutate.near(place, SOURCE, files) == [*files][:3]
    assert mutate.near(replace(place, file="bench/line.py"), SOURCE, files) == ["tests/bench/cli/test_run.py"]
    examples, *others = mutate.near(place, f"{SOURCE}    >>> 1", files)
    assert examples.endswith("[bench/core/line.py]") and others == [*files][:3]
    for folder in ("core", "old"):
        by = f"FAILED tests/bench/{folder}/test_line.py::test_cut[1-2] - assert 0"
        assert mutate.killers(by, files) == ["tests/bench/core/test_line.py::test_cut"]
    assert mutate.killers("", files) == mutate.killers("FAILED tests/test_gone.py::test_gone", files) == []


def test_only_a_test_that_fails_kills(mutate):
    # none failed, some failed, it died, a file cannot be read, a test is no more, none is fast
    codes = {0: "survived", 1: "killed", -11: "killed", 2: "unclear", 4: "unclear", 5: "survived"}
    # the limits of processor time and of all time
    limits = {None: "budget", -9: "budget", -24: "budget"}
    assert {code: mutate.verdict(code) for code in codes | limits} == codes | limits


def test_a_fault_meets_the_test_that_killed_it_and_then_those_near_it(mutate, tmp_path, monkeypatch):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "line.py").write_text(SOURCE)
    (tmp_path / "tests" / "bench").mkdir(parents=True)
    (tmp_path / "tests" / "bench" / "test_line.py").write_text("def test_at(): ...")
    runs = []

    def pytest_run(tree, arguments, seconds, log):
        faulty = "<= 0" in (tmp_path / "bench" / "line.py").read_text()
        runs.append((faulty, arguments))
        log.write_text("FAILED tests/bench/test_line.py::test_at - assert 0\n" if arguments[-1].endswith(".py") else "")
        return "killed" if arguments[-1].endswith(".py") else "survived"

    monkeypatch.setattr(mutate, "pytest_run", pytest_run)
    place = {"name": "one", "file": "bench/line.py", "function": "Line.at", "text": "If: y < 0", "change": "comparison"}
    killed, gone = place | {"by": "FAILED tests/test_old.py::test_at"}, place | {"name": "two", "text": "If: y < 1"}
    state = tmp_path / "state.jsonl"
    for _ in range(2):
        # a second run finds all done, and runs the tests that killed without a fault again
        mutate.run(tmp_path, [killed, gone], state, {}, 1)
        killed["by"] = ""
    near, alone = "tests/bench/test_line.py", "tests/bench/test_line.py::test_at"
    assert runs == [(True, ["-x", alone]), (True, ["-x", near]), (False, [alone]), (False, [alone])]
    found = [(line["name"], line["stage"], line["outcome"]) for line in mutate.lines_of(state)]
    assert found == [("one", "killer", "survived"), ("one", "near", "killed"), ("two", "gone", "gone")]
    assert (tmp_path / "bench" / "line.py").read_text() == SOURCE
