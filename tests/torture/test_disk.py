"""Full disks, closed pipes and little memory: one line, a code other than 0, and nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tally import Extent, Tally

RESULTS = Path(__file__).parent.parent.parent / "results"
ATTNBENCH = f"{sys.executable} -m attnbench"
TRAIN = "run --variants softmax --task lra-listops --preset smoke --seeds 1 --lanes train --offline"

# command line of the shell → the codes that it may end with
COMMANDS: dict[str, tuple[int, ...]] = {
    f"{ATTNBENCH} list > /dev/full": (4,),
    f"{ATTNBENCH} leaderboard --results {RESULTS} --task lra-text > /dev/full": (4,),
    f"{ATTNBENCH} list >&-": (0, 4),
    f"{ATTNBENCH} list nothing 2> /dev/full": (1, 2, 4, 120),
    f"set -o pipefail; {ATTNBENCH} leaderboard --results {RESULTS} --format csv | head -1": (0, 141),
    f"set -o pipefail; {ATTNBENCH} leaderboard --results {RESULTS} | true": (0, 141),
    f"ulimit -v 400000; {ATTNBENCH} plan --variants rela --task sweep": (1, 4, 71, 127, 134, 139),
    f"ulimit -n 18; {ATTNBENCH} {TRAIN}": (2,),
    f"ulimit -f 0; {ATTNBENCH} leaderboard --results {RESULTS} --task lra-text --out board.md --format markdown": (4,),
    f"ulimit -f 0; {ATTNBENCH} new variant my-attention": (4,),
    f"ulimit -f 100; {ATTNBENCH} {TRAIN}": (1, 3, 4),
}


def problem_of(command: str, codes: tuple[int, ...], folder: Path) -> str | None:
    environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        # Python ignores the signal of a file that grows too large, and gets an error instead
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment
    )  # fmt: skip
    if done.returncode not in codes:
        return f"it ended with {done.returncode}: {done.stderr[-400:]!r}"
    if "Traceback" in done.stderr or "Exception ignored" in done.stderr:
        return f"it prints a traceback: {done.stderr[-400:]!r}"
    left = [path.name for path in folder.rglob("*.unfinished")]
    return f"it left {left}" if left else None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """full disks, closed pipes, little memory: one line and nothing half-written."""
    for at, command in enumerate(extent.of(list(COMMANDS), sample=1)):
        folder = tmp_path / str(at)
        folder.mkdir()
        tally.check(command.replace(ATTNBENCH, "attnbench"), problem_of(command, COMMANDS[command], folder))
    tally.verdict()
