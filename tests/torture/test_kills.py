"""Kills at random moments: nothing that was acknowledged is lost, and the same command ends with the same numbers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands_under_test import Command, run_command
from seeds import seed
from tally import Extent, Tally

WRITER = """
import json, os, random, signal, sys, time
from pathlib import Path
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.store import Store

folder, drawn = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
machine = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)

def record(number):
    cell = Cell(variant=Spec("softmax"), task=Spec.of("t", number=number), preset=Spec("smoke"))
    return Record(cell=cell, outcome=Outcome.OK, machine=machine, digest="a-b-c", reason="x" * (number % 5000))

def append(first, many, acknowledged):
    store = Store(folder)
    for number in range(first, first + many):
        store.append(record(number))
        os.write(acknowledged, b"%d\\n" % number)
    os._exit(0)

def started(first, many):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        append(first, many, writing)
    os.close(writing)
    return pid, os.fdopen(reading)

def problem(acknowledged):
    numbers = [int(r.cell.task.get("number")) for r in Store(folder, lambda notice: None).records()]
    if len(set(numbers)) != len(numbers):
        return "a Record is there twice"
    lost = set(acknowledged) - set(numbers)
    return f"{len(lost)} acknowledged Records are lost" if lost else None

problems, acknowledged = [], []
for kill in range(int(sys.argv[3])):
    pid, answers = started(10_000 * kill, 10_000)
    # a busy machine may need longer for the first one than any kill waits
    acknowledged += [int(answers.readline())] if kill % 2 else []
    time.sleep(drawn.uniform(0.0, 0.03))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    acknowledged += [int(line) for line in answers if line.endswith("\\n")]
    problems.append(problem(acknowledged))
print(json.dumps([problems, len(acknowledged)]))
"""

RUN = ("run", "--variants", "softmax", "--task", "lra-listops", "--preset", "smoke", "--seeds", "1", "--lanes", "train",
       "--threads", "1", "--device", "cpu", "--results", "results")  # fmt: skip


def test_appends(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """kills inside the store: no acknowledged Record is lost or doubled."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(seed()), "200" if extent.all_cases else "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    problems, acknowledged = json.loads(done.stdout)
    for number, problem in enumerate(problems):
        tally.check(f"kill {number}", problem)
    assert acknowledged
    tally.verdict()


def numbers(folder: Path) -> dict[str, list[float]]:
    """The measured values of each cell that is ok; clocks and memory differ from run to run."""
    lines = [line for file in (folder / "results" / "records").glob("*.jsonl") for line in file.read_text().split("\n")]
    found = {}
    for record in (json.loads(line) for line in lines if line):
        if record["outcome"] == "ok":
            kept = [m["value"] for m in record["measurements"] if m["name"] in ("accuracy", "loss", "best_step")]
            found[json.dumps(record["cell"], sort_keys=True)] = kept
    return found


@pytest.mark.slow
def test_runs(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """kills of whole runs: parent or child, at any moment; resumed to the same numbers, and no process is left."""
    whole = tmp_path / "whole"
    whole.mkdir()
    variables = {"ATTNBENCH_CACHE": str(tmp_path / "cache")}
    started = time.monotonic()
    assert run_command(*RUN, folder=whole, variables=variables, seconds=600.0).problem(0) is None
    length = time.monotonic() - started
    expected = numbers(whole)
    assert expected and all(expected.values())
    drawn = random.Random(seed())
    for number in range(15 if extent.all_cases else 5):
        folder = tmp_path / f"kill-{number}"
        folder.mkdir()
        of_child, at = number % 2 == 0, drawn.uniform(0.1, length)
        command = Command(*RUN, folder=folder, variables=variables)
        time.sleep(at)
        children = command.children()
        if of_child and children:
            # the server, a supervisor and a worker in turn, as they were started
            sorted(children, key=lambda each: each.pid)[number // 2 % len(children)].kill()
        else:
            command.send(signal.SIGKILL)
        ended = command.ended(600.0)
        problem = ended.problem(-signal.SIGKILL, 0, 1)
        # a cell whose child was killed is done, with that outcome
        again = run_command(*RUN, "--retry", folder=folder, variables=variables, seconds=600.0)
        problem = problem or again.problem(0)
        if numbers(folder) != expected:
            problem = problem or f"other numbers: {numbers(folder)}"
        tally.check(f"{'child' if of_child else 'parent'} after {at:.1f} of {length:.1f} s", problem)
    tally.verdict()
