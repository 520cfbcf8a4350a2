"""Commands that another package brings: listed without its code, run by their name, broken alone."""

import os
import subprocess
import sys

import pytest

MODULE = """
import typer

from attnbench.bench.cli.command import command


@command("Read", "attnbench twice 21")
def twice(number: int) -> None:
    \"\"\"Print a number twice over.\"\"\"
    print(2 * number)
"""


@pytest.fixture
def attnbench(tmp_path):
    """Runs a command where two packages bring one each, the second of which ends any process that imports it."""
    (tmp_path / "others.py").write_text(MODULE)
    (tmp_path / "deadly.py").write_text("import os\nos._exit(3)\n")
    for name, target in (("twice", "others:twice"), ("deadly", "deadly:deadly")):
        folder = tmp_path / f"{name}_plugin-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[attnbench.commands]\n{name} = {target}\n")

    def run(*words):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "attnbench", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def test_help_lists_a_command_of_others_and_runs_none_of_their_code(attnbench):
    shown = attnbench("--help")
    assert shown.returncode == 0 and "From twice-plugin 1.0." in shown.stdout and "deadly" in shown.stdout


def test_a_command_of_others_runs_by_its_name_with_its_own_help(attnbench):
    assert attnbench("twice", "21").stdout == "42\n"
    assert "Print a number twice over." in attnbench("twice", "--help").stdout
    wrong = attnbench("twice")
    assert wrong.returncode == 2 and "write `attnbench twice 21`" in wrong.stderr
