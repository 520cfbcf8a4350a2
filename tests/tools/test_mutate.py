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
    found = [(text.partition(":")[0], kind) for _, text, kind, _ in mutate.candidates(SOURCE)]
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


def test_a_place_is_found_under_the_new_names_of_a_variable_and_of_its_function(mutate):
    place = mutate.Place("one", "line.py", "Line.at", "If: y < 0", "comparison")
    later = SOURCE.replace("def at", "def cross").replace("y < 0", "level < 0")
    found = mutate.planted(later, mutate.renamed(place, ["y=level", "at=cross"]))
    assert found == later.replace("if level < 0", "if (level <= 0)")


def test_one_case_of_each_test_comes_before_the_second_of_any(mutate):
    seconds = {"a[1]": 1.0, "a[2]": 2.0, "b[1]": 3.0, "b[2]": 4.0, "c": 20.0}
    assert mutate.in_turns(list(seconds), seconds, 8.0) == ["a[1]", "b[1]", "a[2]"]


def test_only_a_test_that_fails_kills(mutate):
    log = "1 failed\nFAILED tests/test_one.py::test_it - assert 0\n"
    codes = {0: "survived", 1: "killed", 2: "killed", -11: "killed", 4: "unclear", 5: "unclear"}
    # the limits of processor time and of all time
    limits = {None: "timeout", -9: "timeout", -24: "timeout"}
    assert {code: mutate.verdict(code, log)["outcome"] for code in codes | limits} == codes | limits
    assert mutate.verdict(1, log)["by"] == "FAILED tests/test_one.py::test_it - assert 0"
