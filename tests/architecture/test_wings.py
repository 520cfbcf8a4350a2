"""Each wing comes off: without its folder, tests and entry points the core still helps, lists, runs and ranks."""

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnbench

ROOT = Path(attnbench.__file__).parent
WINGS = {path.parent.name: [path.parent] for path in sorted((ROOT / "bench" / "wings").glob("*/__init__.py"))}
WINGS["translation"].append(ROOT / "tasks" / "translation")
WINGS["triton"] = [ROOT / "variants" / "kernels" / "triton"]
"""By name, the folders that are deleted, with the tests of the same name."""

KEPT = ("bench", "variants", "tasks", "dashboards", "tests", "__init__.py", "__main__.py", "pyproject.toml")

CORE = ["core", "plan", "score", "stats", "store"]
"""The folders of tests/bench that run where all wings are gone."""

# linear has no kernel in C++, which each copy would build anew
RUN = "run --variants linear --task recall --preset smoke --lanes train --results results --offline"


@pytest.fixture
def copy_without(tmp_path):
    """Makes a copy of the project without some wings, and returns what runs a command in it."""

    def make(*wings):
        gone = [folder.relative_to(ROOT) for wing in wings for folder in WINGS[wing]]
        gone += [Path("tests", folder) for folder in gone]
        for name in KEPT:
            source, target = ROOT / name, tmp_path / "attnbench" / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        for folder in gone:
            shutil.rmtree(tmp_path / "attnbench" / folder, ignore_errors=True)
        # without original data the task makes a surrogate
        (tmp_path / "none").mkdir()
        modules = tuple("attnbench." + ".".join(folder.parts) + "." for folder in gone)
        _write_metadata(tmp_path / "attnbench-0.3.0.dist-info", modules)
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "ATTNBENCH_DATA": str(tmp_path / "none")}

        def run(*words, module="attnbench", cwd=tmp_path):
            command = [sys.executable, "-m", module, *words]
            done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            return done.stdout

        return run

    return make


def _write_metadata(folder, gone):
    """What an installation without the modules below `gone` would declare."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: attnbench\nVersion: 0.3.0\n")
    parser = configparser.RawConfigParser(delimiters="=")
    parser.optionxform = str
    for group, points in project["entry-points"].items():
        parser[group] = {name: target for name, target in points.items() if not f"{target}.".startswith(gone)}
    with (folder / "entry_points.txt").open("w") as file:
        parser.write(file)


@pytest.mark.slow  # a copy and two commands
@pytest.mark.parametrize("wing", WINGS)
def test_the_core_helps_and_lists_without_a_wing(wing, copy_without):
    run = copy_without(wing)
    assert "leaderboard" in run("--help") and "rela" in run("list", "variants")


@pytest.mark.soak  # a copy and a small run; without all wings at once, below, also beside each change
@pytest.mark.parametrize("wing", WINGS)
def test_the_core_runs_without_a_wing(wing, copy_without):
    shown = copy_without(wing)(*RUN.split())
    assert "linear" in shown and "softmax" in shown


@pytest.mark.slow  # a copy, a small run and the tests of the core's rooms
def test_the_core_and_its_tests_run_without_any_wing(copy_without, tmp_path):
    run = copy_without(*WINGS)
    shown = run("--help")
    assert not [name for name in ("audit", "judge", "choose", "convert", "merge") if f"│ {name} " in shown]
    run(*RUN.split())
    for words in ("leaderboard --results results", "status --results results", "show rela", "check no-attention"):
        run(*words.split())
    folders = [f"tests/bench/{name}" for name in CORE]
    # the fixtures of the audit are declared by the installed package too
    words = ["-q", "-p", "no:attnbench", "-m", "not slow and not soak", *folders]
    assert " passed" in run(*words, module="pytest", cwd=tmp_path / "attnbench")
