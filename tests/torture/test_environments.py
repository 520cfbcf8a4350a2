"""Environments that nobody means: each command ends as elsewhere, or in one line, and writes nothing in odd places."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tally import Extent, Tally

RESULTS = Path(__file__).parent.parent.parent / "results"

COMMANDS = (
    ("list",),
    ("show", "rela"),
    ("leaderboard", "--results", str(RESULTS), "--task", "lra-text"),
    ("plan", "--variants", "rela", "--task", "sweep", "--results", "r"),
    ("status", "--results", str(RESULTS)),
    ("data", "list"),
    ("run", "--variants", "softmax", "--task", "recall", "--preset", "smoke[steps=2]", "--lanes", "train", "--seeds",
     "1", "--threads", "1", "--offline", "--results", "r"),
)  # fmt: skip

GONE = None
ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "no HOME": {"HOME": GONE},
    "a HOME that is nowhere": {"HOME": "/nonexistent"},
    "a HOME that is a file": {"HOME": "/etc/passwd"},
    "an empty HOME": {"HOME": ""},
    "no folder for temporary files": {"TMPDIR": "/nonexistent"},
    "a cache that is a device": {"ATTNBENCH_CACHE": "/dev/null"},
    "a cache of no name": {"ATTNBENCH_CACHE": ""},
    "a cache below a file": {"XDG_CACHE_HOME": "/etc/passwd"},
    "data that are nowhere": {"ATTNBENCH_DATA": "/nonexistent"},
    "no columns": {"COLUMNS": "0"},
    "one column": {"COLUMNS": "1"},
    "columns of no number": {"COLUMNS": "wide"},
    "a million columns": {"COLUMNS": "1000000"},
    "no terminal": {"TERM": GONE},
    "a dumb terminal": {"TERM": "dumb", "NO_COLOR": "1"},
    "forced colours": {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
    "Turkish": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "a language that nobody has": {"LC_ALL": "xx_YY.NOTHING"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "a time zone that nobody has": {"TZ": "Nowhere/Never"},
    "threads of no number": {"OMP_NUM_THREADS": "many"},
    "no threads": {"OMP_NUM_THREADS": "0"},
    "no processors of its own": {"CUDA_VISIBLE_DEVICES": "-1"},
    "optimised": {"PYTHONOPTIMIZE": "2"},
    "random hashes": {"PYTHONHASHSEED": "random"},
    "fixed hashes": {"PYTHONHASHSEED": "1"},
    "unbuffered": {"PYTHONUNBUFFERED": "1"},
    "warnings": {"PYTHONWARNINGS": "default"},
    "patience of no number": {"ATTNBENCH_PLUGIN_SECONDS": "soon"},
    "patience below zero": {"ATTNBENCH_PLUGIN_SECONDS": "-1"},
    "patience without end": {"ATTNBENCH_PLUGIN_SECONDS": "inf"},
    "patience that is none": {"ATTNBENCH_PLUGIN_SECONDS": "nan"},
    "variants of no form": {"ATTNBENCH_VARIANTS": "=;;a=b=c;:"},
    "a variable of 100,000 letters": {"ATTNBENCH_VARIANTS": "x" * 100_000},
}


def problem_of(words: tuple[str, ...], environment: dict[str, str | None], folder: Path) -> str | None:
    variables = {**os.environ, "HOME": str(folder), "ATTNBENCH_CACHE": str(folder.parent / "cache"), **environment}
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *words],
        capture_output=True,
        timeout=300,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in variables.items() if value is not None},
    )
    errors = done.stderr.decode(errors="replace")
    if done.returncode not in (0, 1, 2, 3, 4, 5) or "Traceback" in errors:
        return f"it ended with {done.returncode}: {errors[-300:]!r}"
    if done.returncode in (2, 3, 4, 5) and not errors.strip():
        return f"it ended with {done.returncode} and says nothing"
    return None if done.returncode or done.stdout.strip() else "it printed nothing"


def test_environments(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """environments: each command ends as elsewhere, or in one line."""
    pairs = [(words, name) for words in COMMANDS for name in ENVIRONMENTS]
    # a run takes longest, and the sample is to be quick
    quick = [pair for pair in pairs if pair[0][0] != "run"]
    for words, name in pairs if extent.all_cases else extent.of(quick, sample=1):
        folder = tmp_path / str(tally.tried)
        folder.mkdir()
        tally.check(f"{words[0]}: {name}", problem_of(words, ENVIRONMENTS[name], folder))
    tally.verdict()
