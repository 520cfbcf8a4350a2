"""One small run with real child processes, made once for all tests of a session."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

RUN = (
    "run", "--variants", "linear", "--task", "recall,sweep[length=16,batch=1,heads=1]",
    "--preset", "smoke[timing_seconds=0.2]", "--lanes", "train,time", "--device", "cpu", "--threads", "1",
)  # fmt: skip
"""softmax and linear, trained on one task and timed on another; no kernel is compiled and no data are needed."""


@dataclass(frozen=True, slots=True)
class SmallRun:
    """`results`: the folder of the run, for reading only. `printed`: the standard output of the command."""

    results: Path
    printed: str


def small_run_in(folder: Path) -> SmallRun:
    """The run in `folder`, which all processes of the session share. The first process makes it; the others wait."""
    printed = folder / "printed.txt"
    with FileLock(folder.with_suffix(".lock")):
        # the output is written last, so its file marks a run that ended
        if not printed.is_file():
            command = [sys.executable, "-m", "attnbench", *RUN, "--results", str(folder / "results")]
            ended = subprocess.run(command, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            printed.write_text(ended.stdout, encoding="utf-8")
    return SmallRun(results=folder / "results", printed=printed.read_text(encoding="utf-8"))
