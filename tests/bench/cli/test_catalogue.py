"""`attnbench list` and `show`: what is there, and what a preset means where."""

import json

from typer.testing import CliRunner

from attnbench.bench.cli.app import app


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 0, found.output
    return found.output


def test_a_bare_list_shows_all_kinds() -> None:
    listed = json.loads(run("list", "--json"))
    assert list(listed) == ["variants", "wrappers", "tasks", "suites", "presets"]
    assert "lra" in {item["name"] for item in listed["suites"]} and "rela" in {i["name"] for i in listed["variants"]}
    assert json.loads(run("list", "suites", "--json")) == listed["suites"]


def test_presets_say_for_which_tasks_they_mean_what() -> None:
    listed = json.loads(run("list", "presets", "--json"))
    papers = {item["origin"]: item["description"] for item in listed if item["name"] == "lra-paper"}
    assert papers["lra-text"].startswith("6 layers of width 512 with 8 heads")
    # two tasks, two lines; and a task that refuses a preset is not in its lines
    assert papers["lra-retrieval"] != papers["lra-text"]
    assert not any("lra-pathx" in item["origin"] for item in listed if item["name"] == "quick")


def test_show_of_a_preset_takes_parameters_and_speaks_task_by_task() -> None:
    shown = json.loads(run("show", "quick[steps=77]", "--json"))
    assert shown["name"] == "quick[steps=77]" and "its values depend on the task" in shown["preset"]
    assert "steps 77" in shown["lra-text"]


def test_a_task_that_refuses_a_preset_is_shown_with_the_others() -> None:
    shown = json.loads(run("show", "lra-pathx", "--json"))
    presets = {name.removeprefix("preset ") for name in shown if name.startswith("preset ")}
    assert presets == {"smoke", "pt-2x64", "lra-paper"}


def test_a_task_whose_data_depend_on_its_parameters_is_shown_before_they_are_given() -> None:
    shown = json.loads(run("show", "parallel", "--json"))
    assert shown["metric"].startswith("bleu") and "parallel[path=FOLDER,source=de,target=en]" in shown["data"]
