"""Hostile plugins: an outcome of their own cells and answers, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commands_under_test import Command, Ended, run_command
from hostile_plugins import HOSTILE_TASKS, PLUGINS, HostilePlugin, write
from tally import Extent, Tally

TASK, PRESET = "sweep[batch=1,heads=1,length=16]", "smoke[timing_seconds=0.1]"
SECONDS, CELL_SECONDS = 20.0, 60.0
"""Time limits of an answer and of a cell, on a machine that does much else."""


def command(folder: Path, plugins: tuple[HostilePlugin, ...], *words: str, seconds: float = 300.0) -> Ended:
    known = write(folder / "site", plugins)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    variables = known | {"PYTHONPATH": path, "ATTNBENCH_PLUGIN_SECONDS": str(SECONDS)}
    return run_command(*words, folder=folder, variables=variables, seconds=seconds)


def outcomes(folder: Path, part: str = "variant") -> dict[str, tuple[str, str]]:
    """Outcome and reason of each variant, or of another part of the cell."""
    lines = [line for file in (folder / "results" / "records").glob("*.jsonl") for line in file.read_text().split("\n")]
    records = [json.loads(line) for line in lines if line]
    return {record["cell"][part]: (record["outcome"], record.get("reason", "")) for record in records}


def test_lists(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins in a list: their names stand there, and none of them is imported."""
    ended = command(tmp_path, PLUGINS, "list", "variants")
    for plugin in PLUGINS:
        missing = None if plugin.name in ended.output else "its name is not listed"
        tally.check(plugin.name, ended.problem(0) or missing)
    tally.verdict()


def test_shows(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins shown: one line and an exit code, or the entry, within the limit of an answer."""
    for plugin in extent.of(PLUGINS, sample=1):
        folder = tmp_path / plugin.name
        folder.mkdir()
        tally.check(plugin.name, command(folder, (plugin,), "show", plugin.name).problem(0, 2))
    tally.verdict()


@pytest.mark.slow
def test_checks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins in check and plan: each is named with its problem, and the others are answered for."""
    chosen = tuple(plugin for plugin in PLUGINS if plugin.part in ("import", "constructor"))
    chosen = tuple(extent.of(chosen, sample=1))
    names = [plugin.name for plugin in chosen]
    # the gate takes its time over the innocent one
    beside = ["innocent"] if extent.all_cases else []
    checked = command(tmp_path, chosen, "check", *beside, *names, seconds=1500.0)
    planned = command(
        tmp_path, chosen, "plan", "--variants", ",".join(["innocent", *names]), "--task", TASK, "--preset", PRESET,
        seconds=1500.0,
    )  # fmt: skip
    for plugin in chosen:
        missing = None if plugin.name in checked.output + checked.errors else "check does not name it"
        tally.check(f"check {plugin.name}", checked.problem(0, 1) or missing)
        missing = None if plugin.name in planned.output else "the plan has no cell of it"
        tally.check(f"plan {plugin.name}", planned.problem(0) or missing)
    tally.verdict()


def test_runs(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins in a run: an outcome of their own cell; the innocent one beside them is measured."""
    # those that hang take their whole limit
    quick = [plugin for plugin in PLUGINS if "timeout" not in plugin.outcomes]
    for plugin in PLUGINS if extent.all_cases else extent.of(quick, sample=1):
        folder = tmp_path / plugin.name
        folder.mkdir()
        ended = command(
            folder, (plugin,), "run", "--variants", f"{plugin.name},innocent", "--task", TASK, "--preset", PRESET,
            "--results", "results", "--timeout", str(CELL_SECONDS), "--device", "cpu",
        )  # fmt: skip
        found = outcomes(folder)
        problem = ended.problem(0, 1)
        if found.get("innocent", ("",))[0] != "ok" or found.get("softmax", ("",))[0] != "ok":
            problem = problem or f"the others were not measured: {found}"
        outcome, reason = found.get(plugin.name, ("absent", ""))
        if outcome not in plugin.outcomes:
            problem = problem or f"{outcome} instead of {plugin.outcomes}: {reason}"
        if outcome != "ok" and not reason:
            problem = problem or "its Record gives no reason"
        if (outcome == "ok") != (ended.code == 0) and outcome not in ("timeout", "out_of_memory"):
            problem = problem or f"exit code {ended.code} after {outcome}"
        tally.check(plugin.name, problem)
    tally.verdict()


@pytest.mark.slow
def test_tasks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile tasks in a run: left out, or an outcome of their own cells; the other task is measured."""
    parameters = TASK.partition("[")[2]
    for plugin in extent.of(HOSTILE_TASKS, sample=1):
        folder = tmp_path / plugin.name
        folder.mkdir()
        ended = command(
            folder, (plugin,), "run", "--variants", "softmax", "--task", f"{plugin.name}[{parameters},{TASK}",
            "--preset", PRESET, "--results", "results", "--timeout", str(CELL_SECONDS), "--device", "cpu",
        )  # fmt: skip
        found = outcomes(folder, "task")
        problem = ended.problem(1) if plugin.outcomes != ("timeout",) else ended.problem(0, 1)
        if found.get(TASK, ("",))[0] != "ok":
            problem = problem or f"the other task was not measured: {found}"
        outcome, reason = found.get(f"{plugin.name}[{parameters}", ("absent", ""))
        if outcome not in plugin.outcomes:
            problem = problem or f"{outcome} instead of {plugin.outcomes}: {reason}"
        if outcome == "absent" and plugin.name not in ended.errors:
            problem = problem or "nobody was told that it is left out"
        tally.check(plugin.name, problem)
    tally.verdict()


NOTE = "import os\nwith open(os.environ['NOTE'], 'a') as file: file.write(f'{os.getpid()}\\n')"

COMMANDS = (
    ("list",),
    ("show", "noted"),
    ("list", "variants", "--load"),
    ("plan", "--variants", "noted", "--task", f"noted-task,{TASK}", "--preset", PRESET),
    ("doctor",),
    ("data", "list"),
    ("data", "get", "noted-task", "--preset", "smoke"),
    ("show", "noted-task"),
    ("check", "noted"),
    ("run", "--variants", "noted", "--task", f"noted-task[length=16,batch=1,heads=1],{TASK}", "--preset", PRESET),
)


def test_commands(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """commands that need a plugin: none of them imports it in its own process, and a list does not at all."""
    noted = (HostilePlugin("noted", "import", NOTE), HostilePlugin("noted-task", "task", NOTE))
    variables = write(tmp_path / "site", noted)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    note = tmp_path / "pids"
    for words in extent.of(COMMANDS, sample=1) if extent.all_cases else COMMANDS[:1]:
        note.write_text("", encoding="ascii")
        started = Command(*words, folder=tmp_path, variables=variables | {"PYTHONPATH": path, "NOTE": str(note)})
        ended = started.ended(600.0)
        importers = note.read_text(encoding="ascii").split()
        problem = ended.problem(0)
        if str(started.process.pid) in importers:
            problem = problem or "it imported the plugin itself"
        if bool(importers) != (words != ("list",)):
            problem = problem or f"{len(importers)} processes imported the plugin"
        tally.check(" ".join(words), problem)
    tally.verdict()


@pytest.mark.slow
def test_several_hostile_plugins_in_one_block_leave_the_innocent_one_alone(tmp_path: Path) -> None:
    names = ("import-exit-0", "forward-dtype", "sample-exit", "exit-hang")
    chosen = tuple(plugin for plugin in PLUGINS if plugin.name in names)
    ended = command(
        tmp_path, chosen, "run", "--variants", ",".join([*names, "innocent"]), "--task", TASK, "--preset", PRESET,
        "--results", "results", "--timeout", str(CELL_SECONDS), "--device", "cpu",
    )  # fmt: skip
    found = {name: outcome for name, (outcome, _) in outcomes(tmp_path).items()}
    assert ended.problem(1) is None, ended.problem(1)
    assert found == {
        "softmax": "ok", "innocent": "ok", "import-exit-0": "crashed", "forward-dtype": "incorrect",
        "sample-exit": "crashed", "exit-hang": "ok",
    }  # fmt: skip
