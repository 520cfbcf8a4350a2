"""The first minutes: an example in every help, names completed in a shell, and a run that says where to go on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attnbench.bench.cli import completion, pages
from attnbench.bench.cli.advice import EXAMPLES
from attnbench.bench.cli.app import app

RESULTS = str(Path(__file__).parents[3] / "results")


def commands() -> dict[str, object]:
    """Every command by its words."""
    group = typer.main.get_command(app)
    inner = group.commands["data"].commands
    outer = {name: command for name, command in group.commands.items() if name != "data"}
    return outer | {f"data {name}": command for name, command in inner.items()}


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_help_of_every_command_ends_with_an_example_that_it_takes(name: str) -> None:
    words = shlex.split(EXAMPLES[name])
    assert words[: 1 + len(name.split())] == ["attnbench", *name.split()]
    commands()[name].make_context(name, words[1 + len(name.split()) :])
    shown = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert " ".join(shown.split()).endswith(f"Example: {EXAMPLES[name]}") and shown.count("Example:") == 1
    # a word longer than its column would be cut and end in an ellipsis
    assert not re.search(r"\w…", shown)


def test_no_example_is_of_a_command_that_is_not_there() -> None:
    assert set(EXAMPLES) == set(commands())


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        (completion.variants, "entmax1", ["entmax15"]),
        (completion.variants, "rela,entmax1", ["rela,entmax15"]),
        (completion.variants, "entmax15,entmax1", []),
        (completion.tasks, "lra-te", ["lra-text"]),
        (completion.suites, "synthetic-s", ["synthetic-short"]),
        (completion.presets, "pt-", ["pt-2x64"]),
        (completion.named, "entmax1", ["entmax15"]),
        (completion.named, "lra-te", ["lra-text"]),
        (completion.variants, "nothing-begins-so", []),
    ],
)
def test_names_are_completed_and_the_last_of_a_list(
    complete: completion.Complete, typed: str, expected: list[str]
) -> None:
    assert complete(typed) == expected


def test_a_shell_asks_for_completions_and_gets_them() -> None:
    words = {
        "_ATTNBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "attnbench run --variants rela,entmax1",
        "COMP_CWORD": "3",
    }
    asked = CliRunner().invoke(app, [], prog_name="attnbench", env=words)
    assert asked.output.split() == ["rela,entmax15"]


def test_choose_without_a_length_shows_what_it_can_answer() -> None:
    shown = CliRunner().invoke(app, ["choose", "--results", RESULTS])
    assert shown.exit_code == 0 and "a training step at 128, 192, 256" in shown.output
    command = shown.output.split("`attnbench choose --length ")[1].split("`")[0]
    answer = CliRunner().invoke(app, ["choose", "--length", *shlex.split(command)])
    assert answer.exit_code == 0 and "Which attention costs least" in answer.output


def test_a_plan_of_unknown_cost_states_no_time(tmp_path: Path) -> None:
    command = ["plan", "--variants", "linear", "--task", "recall", "--preset", "smoke", "--results", str(tmp_path)]
    shown = CliRunner().invoke(app, command).stdout.rstrip("\n").split("\n")
    assert [line.split() for line in shown[1:3]] == [
        ["recall", "baseline", "2", "cells,", "2", "to", "run"],
        ["recall", "train", "2", "cells,", "2", "to", "run"],
    ]
    assert shown[-1] == "4 cells, 4 to run: 2 cells of unknown cost, until one like them has run here"


def test_a_run_ends_with_a_page_to_open_and_with_no_page_where_nothing_can_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run", "--variants", "linear", "--task", "sweep[length=16,batch=1,heads=1]", "--preset", "smoke"]
    monkeypatch.setattr(pages, "missing_extra", lambda: ["altair"])
    without = CliRunner().invoke(app, [*command, "--results", str(tmp_path / "a")])
    assert without.exit_code == 0, without.output
    assert f"'attnbench[dashboard]'; attnbench dashboard --results {tmp_path / 'a'}" in without.output
    assert not (tmp_path / "a" / "page").exists()
    assert "length=16], seed 0, time" in without.stderr and "smoke, seed" not in without.stderr
    monkeypatch.undo()
    pytest.importorskip("altair")
    suite = tmp_path / "two.toml"
    tasks = '["sweep[length=16,batch=1,heads=1]", "sweep[length=32,batch=1,heads=1]"]'
    suite.write_text(f'tasks = {tasks}\nvariants = ["linear"]\npreset = "smoke"\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["run", "--suite", str(suite), "--results", str(tmp_path / "b")])
    # sweeps have no quality that a suite's board could average
    assert "A training step of linear" in done.output and "no board" not in done.stderr
    page = tmp_path / "b" / "page" / "index.html"
    assert done.output.rstrip("\n").endswith(f"open: {page}") and "<html" in page.read_text(encoding="utf-8")
    page.unlink()
    page.mkdir()
    unwritable = CliRunner().invoke(app, [*command, "--results", str(tmp_path / "b"), "--variants", "performer"])
    assert unwritable.exit_code == 0 and "no page: cannot write" in unwritable.stderr
    again = CliRunner().invoke(app, [*command, "--results", str(tmp_path / "b")])
    assert "Nothing to do" in again.output and "open:" not in again.output
