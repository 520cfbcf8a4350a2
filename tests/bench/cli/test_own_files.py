"""`--text` and `--pairs` are tasks of these files."""

import pytest
import typer

from attnbench.bench.cli.options import selected


def options(**given):
    return {"tasks": None, "text": None, "pairs": None, "executor_options": []} | given


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        ({}, None),
        ({"text": "my.txt"}, "text[file=my.txt]"),
        ({"tasks": "recall", "text": "a/b.txt", "pairs": "my.tsv"}, "recall,text[file=a/b.txt],parallel[file=my.tsv]"),
    ],
)
def test_files_become_tasks_beside_those_that_are_named(given, tasks):
    assert selected(options(**given)) == {"tasks": tasks, "executor_options": {}}


@pytest.mark.parametrize("path", ["a,b.txt", "a[1].txt", "a|b", "12", "", "caf\u00e9.txt"])
def test_a_path_that_no_name_can_hold_is_refused(path):
    with pytest.raises(typer.BadParameter, match="path"):
        selected(options(text=path))


def test_a_letter_that_no_name_can_hold_is_said_to_be_none():
    with pytest.raises(typer.BadParameter, match="expected an ASCII path without commas and brackets"):
        selected(options(text="caf\u00e9.txt"))
