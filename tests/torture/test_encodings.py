"""Terminals and pipes of every encoding: a command prints what it can, and never fails on a character."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tally import Extent, Tally

RESULTS = Path(__file__).parent.parent.parent / "results"

COMMANDS = [
    ["run", "--help"],
    ["show", "entmax15"],
    ["leaderboard", "--results", str(RESULTS), "--task", "lra-text"],
    ["leaderboard", "--results", str(RESULTS), "--task", "sweep", "--format", "csv"],
    ["plan", "--variants", "rélà\u202e\x1b[31m", "--task", "sweep"],
    ["leaderboard", "--results", "né\x1b[2Jant\n漢"],
]

ENVIRONMENTS = {
    "C": {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "cp1252": {"PYTHONIOENCODING": "cp1252:strict"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}


def problem_of(arguments: list[str], environment: dict[str, str], folder: Path) -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *arguments],
        capture_output=True,
        timeout=90,
        check=False,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "COLUMNS": "150", **environment},
    )
    shown = done.stdout + done.stderr
    if done.returncode not in (0, 1, 2, 4) or b"Traceback" in shown or b"Error:" in shown:
        return f"it ended with {done.returncode}: {done.stderr[-300:]!r}"
    if not shown.strip():
        return "it printed nothing"
    encoding = environment.get("PYTHONIOENCODING", "ascii").partition(":")[0]
    try:
        text = shown.decode(encoding)
    except UnicodeDecodeError as error:
        return f"its output is not {encoding}: {error}"
    return "it prints control characters" if {"\x1b", "\u202e", "\x07"} & set(text) else None


def test_encodings(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """encodings of the terminal: every command prints, and sends no control character of others."""
    pairs = [(arguments, name) for arguments in COMMANDS for name in ENVIRONMENTS]
    for arguments, name in extent.of(pairs, sample=1):
        problem = problem_of(arguments, ENVIRONMENTS[name], tmp_path)
        tally.check(f"{name}: {arguments!r}", problem)
    tally.verdict()
