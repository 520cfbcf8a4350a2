"""Hostile plugins: an outcome of their own cells and answers, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands_under_test import Command, Ended, run_command
from hostile_plugins import HOSTILE_TASKS, PLUGINS, HostilePlugin, write
from tally import Extent, Tally

TASK, PRESET = "sweep[batch=1,heads=1,length=16]", "smoke[timing_seconds=0.1]"
SECONDS, CELL_SECONDS = 20.0, 40.0
"""Time limits of an answer and of a cell, on a machine that does much else."""


def command(
    folder: Path, plugins: Sequence[HostilePlugin], *words: str, seconds: float = 300.0, limit: float = SECONDS
) -> Ended:
    """`seconds`: when it is taken to hang; `limit`: of an answer."""
    known = write(folder / "site", plugins)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    variables = known | {"PYTHONPATH": path, "ATTNBENCH_PLUGIN_SECONDS": str(limit)}
    return run_command(*words, folder=folder, variables=variables, seconds=seconds)


def outcomes(folder: Path, part: str = "variant") -> dict[str, tuple[str, str]]:
    """Outcome and reason of each variant, or of another part of the cell."""
    lines = [line for file in (folder / "results" / "records").glob("*.jsonl") for line in file.read_text().split("\n")]
    records = [json.loads(line) for line in lines if line]
    return {record["cell"][part]: (record["outcome"], record.get("reason", "")) for record in records}


@pytest.mark.soak
@pytest.mark.parametrize("extent", ["all"], indirect=True)
def test_checks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins in check and plan: each is named with its problem, and the others are answered for."""
    chosen = tuple(plugin for plugin in PLUGINS if plugin.part in ("import", "constructor"))
    names = [plugin.name for plugin in chosen]
    # the gate waits ten times the limit of an answer for one that hangs
    quick = [name for name in names if name != "constructor-hang"]
    checked = command(tmp_path, chosen, "check", "innocent", *quick, seconds=1500.0)
    hung = command(tmp_path, chosen, "check", "constructor-hang", seconds=1500.0, limit=SECONDS / 4)
    planned = command(
        tmp_path, chosen, "plan", "--cells", "--variants", ",".join(["innocent", *names]), "--task", TASK,
        "--preset", PRESET, seconds=1500.0,
    )  # fmt: skip
    for plugin in chosen:
        ended = checked if plugin.name in quick else hung
        missing = None if plugin.name in ended.output + ended.errors else "check does not name it"
        tally.check(f"check {plugin.name}", ended.problem(0, 1) or missing)
        missing = None if plugin.name in planned.output else "the plan has no cell of it"
        tally.check(f"plan {plugin.name}", planned.problem(0) or missing)
    tally.verdict()


GROUPS = 8
"""Runs over which the hostile plugins are dealt, like cards: those of a kind meet others."""


@pytest.mark.slow  # a run in full; what a child does is tried in tests/bench/run/test_run_job.py
def test_runs(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile plugins in runs: an outcome of their own cells; those beside them are measured."""
    # those that hang take their whole limit
    quick = [plugin for plugin in PLUGINS if "timeout" not in plugin.outcomes]
    groups = [PLUGINS[at::GROUPS] for at in range(GROUPS)] if extent.all_cases else [extent.of(quick, sample=1)]
    for number, plugins in enumerate(groups):
        folder = tmp_path / str(number)
        folder.mkdir()
        names = ",".join([*(plugin.name for plugin in plugins), "innocent"])
        ended = command(
            folder, plugins, "run", "--variants", names, "--task", TASK, "--preset", PRESET,
            "--results", "results", "--timeout", str(CELL_SECONDS), "--device", "cpu", seconds=900.0,
        )  # fmt: skip
        found = outcomes(folder)
        failed = {outcome for outcome, _ in found.values()} - {"ok", "timeout", "out_of_memory"}
        problem = ended.problem(1 if failed else 0)
        if found.get("innocent", ("",))[0] != "ok" or found.get("softmax", ("",))[0] != "ok":
            problem = problem or f"the others were not measured: {found}"
        for plugin in plugins:
            tally.check(plugin.name, problem or problem_of_cell(plugin, *found.get(plugin.name, ("absent", ""))))
    tally.verdict()


@pytest.mark.soak
@pytest.mark.parametrize("extent", ["all"], indirect=True)
def test_tasks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """hostile tasks in a run: left out, or an outcome of their own cells; the other task is measured."""
    parameters = TASK.partition("[")[2]
    tasks = ",".join([*(f"{plugin.name}[{parameters}" for plugin in HOSTILE_TASKS), TASK])
    ended = command(
        tmp_path, HOSTILE_TASKS, "run", "--variants", "softmax", "--task", tasks,
        "--preset", PRESET, "--results", "results", "--timeout", str(CELL_SECONDS), "--device", "cpu", seconds=900.0,
    )  # fmt: skip
    found = outcomes(tmp_path, "task")
    problem = ended.problem(1)
    if found.get(TASK, ("",))[0] != "ok":
        problem = problem or f"the other task was not measured: {found}"
    for plugin in HOSTILE_TASKS:
        outcome, reason = found.get(f"{plugin.name}[{parameters}", ("absent", ""))
        own = problem_of_cell(plugin, outcome, reason)
        if outcome == "absent" and plugin.name not in ended.errors:
            own = own or "nobody was told that it is left out"
        tally.check(plugin.name, problem or own)
    tally.verdict()


def problem_of_cell(plugin: HostilePlugin, outcome: str, reason: str) -> str | None:
    if outcome not in plugin.outcomes:
        return f"{outcome} instead of {plugin.outcomes}: {reason}"
    return None if outcome in ("ok", "absent") or reason else "its Record gives no reason"


NOTE = "import os\nwith open(os.environ['NOTE'], 'a') as file: file.write(f'{os.getpid()}\\n')"

COMMANDS = (
    ("list",),
    ("show", "noted"),
    ("list", "variants", "--load"),
    ("doctor",),
    ("data", "get", "noted-task", "--preset", "smoke"),
    ("check", "noted"),
    ("convert", ".", "--to", "noted"),
    ("run", "--variants", "noted", "--task", f"noted-task[length=16,batch=1,heads=1],{TASK}", "--preset", PRESET),
)


def test_commands(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """commands that need a plugin: none of them imports it in its own process, and a list does not at all."""
    noted = (HostilePlugin("noted", "import", NOTE), HostilePlugin("noted-task", "task", NOTE))
    variables = write(tmp_path / "site", noted)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    note = tmp_path / "pids"
    (tmp_path / "config.json").write_text("{}", encoding="ascii")
    for words in extent.of(COMMANDS, sample=1) if extent.all_cases else COMMANDS[:1]:
        note.write_text("", encoding="ascii")
        started = Command(*words, folder=tmp_path, variables=variables | {"PYTHONPATH": path, "NOTE": str(note)})
        ended = started.ended(600.0)
        importers = note.read_text(encoding="ascii").split()
        # there is no model here to convert
        problem = ended.problem(3 if words[0] == "convert" else 0)
        if words == ("list",) and not {"noted", "noted-task"} <= set(ended.output.split()):
            problem = problem or "its names are not listed"
        if str(started.process.pid) in importers:
            problem = problem or "it imported the plugin itself"
        if bool(importers) != (words != ("list",)):
            problem = problem or f"{len(importers)} processes imported the plugin"
        tally.check(" ".join(words), problem)
    tally.verdict()
