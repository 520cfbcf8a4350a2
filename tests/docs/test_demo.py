"""`make demo`: the command that it runs, and what a person sees after it."""

import re
import shlex

import pytest
import typer

import attnbench
from attnbench.bench.cli.app import app
from attnbench.bench.plan.suite import load_suite
from attnbench.docs.generator.repository import ROOT

RECIPE = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1]


def test_the_demo_runs_a_suite_that_a_plan_keeps_below_three_minutes(tmp_path):
    command = shlex.split(re.search(r"attnbench (run .*)", RECIPE)[1])
    suite = load_suite(command[command.index("--suite") + 1])
    made = attnbench.plan(suite=suite.name, lanes="train", device="cpu", results=tmp_path)
    assert made.jobs == 2 and 0 < made.seconds < 180
    assert {"softmax", "entmax15", "linear", "local"} == {spec.name for spec in suite.variants}


def test_the_command_line_takes_every_command_that_the_demo_suggests():
    suggested = re.findall(r"\$\(BIN\)/attnbench ([a-z]+)([^'(\n]*)", RECIPE)
    assert len(suggested) > 2
    for name, words in suggested:
        command = typer.main.get_command(app).commands[name]
        command.make_context(name, shlex.split(words))


def test_the_demo_installs_what_the_next_commands_of_the_readme_need():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    extras = re.search(r"^\$\(VENV\)/\.demo:.*\n.*'\.\[(.*)\]'", makefile, re.MULTILINE)[1].split(",")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "attnbench dashboard" in readme and "--task lra-text" in readme and set(extras) == {"dashboard", "imdb"}


@pytest.mark.slow
def test_the_demo_separates_what_recalls_from_what_does_not_yet(tmp_path):
    found = attnbench.run(suite="demo", results=tmp_path)
    accuracy = {
        record.cell.variant.name: record.first("accuracy", split="test").value
        for record in found
        if record.cell.lane == "train"
    }
    assert min(accuracy["softmax"], accuracy["entmax15"]) > 0.95
    assert max(accuracy["linear"], accuracy["local"]) < 0.5
