"""Clocks that jump: a run has the same numbers, ends, and is not repeated; readers read what it wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

from commands_under_test import run_command
from seeds import seed
from tally import Extent, Tally

RESULTS = Path(__file__).parent.parent.parent / "results"

# in every process, since Python imports it before anything else; the monotonic clock has no jumps on any system
SITE = """
import datetime, random, time

draw, real, plain = random.Random({seed}), time.time, datetime.datetime
start = real()

def jump():
    return {jump}

class Jumping(plain):
    @classmethod
    def now(cls, tz=None):
        found = plain.now(tz) + datetime.timedelta(seconds=jump())
        return cls.combine(found.date(), found.timetz())

time.time = lambda: real() + jump()
time.time_ns = lambda: int(time.time() * 1e9)
datetime.datetime = Jumping
"""

YEAR = 365 * 86_400
JUMPS = {
    "an hour back and forth": "draw.choice((-3600, 0, 3600))",
    "back a second at each look": "-draw.randrange(100)",
    "ten years ago, after a second": f"-10 * {YEAR} * (real() > start + 1)",
    "fifty years ahead, after a second": f"50 * {YEAR} * (real() > start + 1)",
    "1970": "-real()",
    "the year 2300": f"270 * {YEAR}",
    "any year": f"draw.uniform(-40, 200) * {YEAR}",
}

COMMON = (
    "--variants",
    "linear",
    "--seeds",
    "1",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--offline",
    "--results",
    "results",
)
RUNS = (
    ("run", "--task", "recall", "--preset", "smoke[steps=4,evaluate_every=2]", *COMMON),
    ("run", "--task", "sweep[length=16,batch=1,heads=1]", "--preset", "smoke[timing_seconds=0.2]", *COMMON),
)
READERS = (
    ("status", "--results", "results"), ("leaderboard", "--results", "results"), ("validate", "results"),
    ("merge", "results", "--results", "ours"), ("dashboard", "--results", "results"),
)  # fmt: skip


def numbers(folder: Path) -> dict[str, list[float]]:
    found = {}
    for file in (folder / "results" / "records").glob("*.jsonl"):
        for record in map(json.loads, filter(None, file.read_text(encoding="utf-8").split("\n"))):
            kept = [m["value"] for m in record["measurements"] if m["name"] in ("accuracy", "loss", "best_step")]
            assert str(record["cell"]) not in found, "a Record is there twice"
            found[str(record["cell"])] = [record["outcome"], *kept]
    return found


def test_clocks(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """clocks that jump: the same numbers, none measured twice, and readers end."""
    # compiled kernels are shared by all runs
    kernels = {"ATTNBENCH_CACHE": str(tmp_path / "cache")}
    if extent.all_cases:
        (tmp_path / "steady").mkdir()
        for words in RUNS:
            assert run_command(*words, folder=tmp_path / "steady", variables=kernels, seconds=600.0).problem(0) is None
        expected = numbers(tmp_path / "steady")
    for name, jump in extent.of(sorted(JUMPS.items()), sample=1):
        folder = tmp_path / name.replace(" ", "-")
        (folder / "site").mkdir(parents=True)
        (folder / "site" / "sitecustomize.py").write_text(SITE.format(seed=seed(), jump=jump), encoding="utf-8")
        variables = kernels | {"PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])}
        readers = READERS
        if extent.all_cases:
            for turn in ("the run", "the run once more"):
                for words in RUNS:
                    ended = run_command(*words, folder=folder, variables=variables, seconds=300.0)
                    tally.check(f"{name}: {turn}", ended.problem(0))
                other = None if numbers(folder) == expected else f"other numbers: {numbers(folder)}"
                tally.check(f"{name}: {turn}, numbers", other)
        else:
            readers = (("status", "--results", str(RESULTS)),)
        for words in readers:
            # what starts in the future is an error of validate, which merge leaves out
            ended = run_command(*words, folder=folder, variables=variables, seconds=120.0)
            tally.check(f"{name}: {words[0]}", ended.problem(0, 1))
    tally.verdict()
