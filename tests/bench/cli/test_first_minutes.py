"""The first minutes: an example in every help, names completed in a shell, and a run that says where to go on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from small_run import SmallRun
from typer.testing import CliRunner

from attnbench.bench.cli import options, pages
from attnbench.bench.cli.app import app

RESULTS = str(Path(__file__).parents[3] / "results")


def commands() -> dict[str, object]:
    """Every command by its words."""
    found: dict[str, object] = {}
    group = typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {each}": inner[each] for each in inner}
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_help_of_every_command_ends_with_an_example_that_it_takes(name: str) -> None:
    example = commands()[name].epilog.removeprefix("Example: ")
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["attnbench", *name.split()]
    commands()[name].make_context(name, words[1 + len(name.split()) :])
    shown = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert " ".join(shown.split()).endswith(f"Example: {example}") and shown.count("Example:") == 1
    # a word longer than its column would be cut and end in an ellipsis
    assert not re.search(r"\w…", shown)


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        (options.complete_variants, "rela,entmax1", ["rela,entmax15"]),
        (options.complete_variants, "entmax15,entmax1", []),
        (options.complete_tasks, "lra-te", ["lra-text"]),
        (options.complete_suites, "synthetic-s", ["synthetic-short"]),
        (options.complete_presets, "pt-", ["pt-2x64"]),
        (options.complete_named, "entmax1", ["entmax15"]),
        (options.complete_named, "lra-te", ["lra-text"]),
    ],
)
def test_names_are_completed_and_the_last_of_a_list(
    complete: options.Complete, typed: str, expected: list[str]
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


def test_a_plan_says_that_its_time_is_an_estimate_where_nothing_has_run(tmp_path: Path) -> None:
    command = ["plan", "--variants", "linear", "--task", "recall", "--preset", "smoke", "--results", str(tmp_path)]
    shown = CliRunner().invoke(app, command).stdout
    assert "4 cells, 4 to run: about " in shown and "an estimate" in shown
    assert "presets: smoke; trained with the seeds 0\n" in shown


def test_a_run_ends_with_its_boards_and_a_page_to_open(small_run: SmallRun) -> None:
    pytest.importorskip("altair")
    page = small_run.results / "page" / "index.html"
    # beside other tests its cores may be busy, and then nothing is ranked
    ending = "A training step of linear", "times it anew"
    assert any(words in small_run.printed for words in ending)
    assert small_run.printed.rstrip("\n").endswith(f"open: {page}") and "<html" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_without_a_page_says_why(
    own_results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--task", "sweep[length=16,batch=1,heads=1]", "--preset", "smoke[timing_seconds=0.2]"]
    command += ["--device", "cpu", "--threads", "1", "--results", str(own_results), "--variants"]
    again = CliRunner().invoke(app, [*command, "linear"])
    assert again.exit_code == 0 and "Nothing to do" in again.output and "open:" not in again.output
    page = own_results / "page" / "index.html"
    page.unlink()
    monkeypatch.setattr(pages, "missing_extra", lambda: ["altair"])
    pages.say_page(own_results)
    assert f"'attnbench[dashboard]'; attnbench dashboard --results {own_results}" in capsys.readouterr().out
    assert not page.exists()
    monkeypatch.undo()
    pytest.importorskip("altair")
    page.mkdir()
    unwritable = CliRunner().invoke(app, [*command, "fastformer"])
    assert unwritable.exit_code == 0, unwritable.output
    assert "seed 0, time" in unwritable.stderr and "no page: cannot write" in unwritable.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["plan", "--task", "recall", "--task=max"], "--task"),
        (["leaderboard", "-f", "csv", "--format", "json"], "--format"),
        (["data", "get", "recall", "--preset", "smoke", "--preset", "quick"], "--preset"),
    ],
)
def test_an_option_given_twice_is_refused_since_only_one_could_count(words: list[str], option: str) -> None:
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2 and f"{option} is given twice" in " ".join(shown.output.split())


def test_options_that_repeat_by_design_still_do() -> None:
    command = commands()["run"]
    twice = ["--executor-option", "a=1", "--executor-option", "b=2", "--retry", "--retry"]
    assert command.make_context("run", twice).params["executor_options"] == ["a=1", "b=2"]
