"""`--text` and `--pairs` are tasks of these files, and `--call` goes into the names of foreign code."""

import json
import os

import pytest
import typer
from command_lines import answer

import attnbench
from attnbench.bench.cli.options import selected
from attnbench.bench.core.decode import decode_hook
from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.spec import Spec


def options(**given):
    return {"tasks": None, "text": None, "pairs": None, "call": "", "executor_options": []} | given


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


@pytest.mark.parametrize("path", ["a,b.txt", "a[1.txt", "a|b", "12", "", "caf\u00e9.txt"])
def test_a_path_that_no_name_can_hold_is_refused(path):
    with pytest.raises(typer.BadParameter, match="path"):
        selected(options(text=path))


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("text", "empty.txt", "empty.txt: it is empty; name a file of text, from /"),
        ("text", "pipe", "pipe: expected a file, got a named pipe; name a file of text"),
        ("text", "/dev/zero", "/dev/zero: expected a file, got a device; name a file of text"),
        ("text", ".", "expected a file, got a folder"),
        ("pairs", "alone.tsv", "alone.tsv: line 1 has no tab; name a file with SOURCE<tab>TARGET on each line"),
    ],
)
def test_a_plan_refuses_a_file_as_a_run_does(option, name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "alone.tsv").write_text("alone\n")
    os.mkfifo(tmp_path / "pipe")
    task = {"text": f"text[file={name}]", "pairs": f"parallel[file={name}]"}[option]
    for does in (attnbench.plan, attnbench.run):
        with pytest.raises(DataError) as refused:
            does("softmax", task, preset="smoke", results=tmp_path / "r")
        assert said in str(refused.value)


CALL = "m(x, {'scale': 2, 'seen': seen})[0]"
ODD = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def forward(self, x, settings):
        q, k, v = self.project(x).chunk(3, -1)
        scores = settings["scale"] * (q @ k.mT) / x.shape[-1] ** 0.5
        return scores.masked_fill(~settings["seen"], -1e4).softmax(-1) @ v, None
"""


def test_a_call_goes_into_each_name_of_foreign_code():
    found = selected(options(variants="rela,gate+mine.py:Odd[dim=8]", call=CALL))["variants"]
    assert [str(spec) for spec in found] == ["rela", f"gate+mine.py:Odd[call={CALL},dim=8]"]
    assert Spec.parse(str(found[1])) == found[1] == decode_hook(Spec, str(found[1]))
    with pytest.raises(SelectionError, match=r"FILE\.py:NAME beside --call, got rela"):
        selected(options(variants="rela", call=CALL))
    with pytest.raises(SelectionError, match=r"without `\|`"):
        selected(options(variants="mine.py:Odd", call="m(x, valid | True)"))


@pytest.mark.slow
def test_a_layer_that_no_trial_calls_is_tested_with_the_call_that_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ODD, encoding="utf-8")
    found = answer(["check", "mine.py:Odd", "--json", "--call", CALL])
    assert found.code == 0
    assert ("causal", "holds") in [(each["property"], each["verdict"]) for each in json.loads(found.output)]


DISK = "class Mine: pass\nraise OSError('no disk')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("check mine.py:Mine", DISK, "does not load: OSError: no disk"),
        ("plan --task recall --preset smoke --variants gate+mine.py:Mine", DISK, "no disk"),
        ("run --task recall --preset smoke --variants rela,mine.py:Mine", "class Mine: pass\nexit(3)", "SystemExit: 3"),
        ("check mine.py:Mine", "class Mine: pass", "expected mine.py:Mine to make a module, got Mine"),
    ],
)
def test_a_file_that_does_not_load_is_wrong_use_and_nothing_runs(command, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    found = answer(command)
    assert found.code == 2 and words in found.errors and not (tmp_path / "results").exists()
