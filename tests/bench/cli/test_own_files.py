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


@pytest.mark.parametrize("path", ["a,b.txt", "a[1].txt", "a|b", "12", ""])
def test_a_path_that_no_name_can_hold_is_refused(path):
    with pytest.raises(typer.BadParameter):
        selected(options(text=path))
