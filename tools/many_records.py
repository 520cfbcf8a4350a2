"""How long commands take on many Records: pytest -s tools/many_records.py.

`many`: 20,000 Records, 833 boards of 4 variants; a leaderboard of them should take 5 s at most on a quiet machine.
`board`: 100,000 Records of a public board that has grown: 24 boards of 40 variants, each run again by 17 versions of
the code. `wide`: 100,000 Records, 833 boards of 20 variants, all of them current.

Each command is a process of its own, as a person would start it. Printed are seconds on the clock, and of processor
time, which other work on the machine disturbs less; the counts of boards and variants are asserted.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.record import Machine, Measurement, Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec

SHAPES = {"many": (833, 1, 4, 1), "board": (12, 2, 40, 17), "wide": (833, 1, 20, 1)}
"""Tasks, presets, variants and versions of the code; each with five seeds and one timing."""

SETTING = {"layers": 2, "width": 64, "heads": 2, "length": 512, "batch": 32, "steps": 200, "ranked": True}
MACHINE = Machine(id="box", system="Linux", processor="Abacus", cores=2, threads=2, memory_bytes=2**33)
DATA = Provenance(source="generator", fidelity="regenerated", counts={"test": 1000})


def records(tasks: int, presets: int, variants: int, versions: int) -> Iterator[Record]:
    rng = np.random.default_rng(0)
    names = [Spec("softmax"), *(Spec(f"variant{at}") for at in range(variants - 1))]
    clock = 0
    for version in range(versions):
        for task in range(tasks):
            for preset in range(presets):
                for variant in names:
                    for run in range(6):
                        clock += 1
                        lane = "train" if run < 5 else "time"
                        cell = Cell(
                            variant=variant, task=Spec(f"task{task}"), preset=Spec(f"preset{preset}"), seed=run % 5,
                            lane=lane,
                        )  # fmt: skip
                        yield Record(
                            cell=cell, outcome=Outcome.OK, machine=MACHINE, digest=f"a{version}-b-c", data=DATA,
                            started=f"2026-01-01T{clock:08}", block=f"task{task}" if lane == "time" else "",
                            measurements=tuple(trained(rng) if lane == "train" else timed(rng)), setting=SETTING,
                        )  # fmt: skip


def trained(rng: np.random.Generator) -> Iterator[Measurement]:
    yield Measurement.of("accuracy", float(rng.normal(0.6, 0.01)), split="test", examples=1000)
    for layer in range(2):
        for head in range(2):
            yield Measurement.of("sparsity", 0.5, layer=layer, head=head)


def timed(rng: np.random.Generator) -> Iterator[Measurement]:
    for name in ("", "reference_", "null_"):
        yield Measurement.of(f"{name}step_seconds", 1.0, tuple(np.exp(rng.normal(0, 0.02, 20)).tolist()))
    yield Measurement.of("peak_bytes", 1e9)


@pytest.fixture(scope="module", params=SHAPES)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp(request.param)
    (root / "records").mkdir()
    with (root / "records" / "box.jsonl").open("w", encoding="utf-8") as file:
        for record in records(*SHAPES[request.param]):
            file.write(json.dumps(record.to_json(), separators=(",", ":")) + "\n")
    return request.param, root


def timed_run(*words: str) -> str:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "attnbench", *words], check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{wall:.1f} s, {processor:.1f} s of processor time"


def test_commands_on_many_records(results: tuple[str, Path], tmp_path: Path) -> None:
    name, root = results
    tasks, presets, variants, _ = SHAPES[name]
    board, page = tmp_path / "board.csv", tmp_path / "site"
    whole = ["leaderboard", "--results", str(root), "--format", "csv", "--out", str(board)]
    drawn = ["dashboard", "--results", str(root), "--out", str(page), "--task", "task3"]
    print(f"\n{name}: leaderboard: {timed_run(*whole)}", end="")
    assert board.read_text().count("\n") == 1 + tasks * presets * variants
    print(f"\n{name}: leaderboard as tables: {timed_run('leaderboard', '--results', str(root))}", end="")
    print(f"\n{name}: leaderboard of one task: {timed_run(*whole, '--task', 'task3')}", end="")
    assert board.read_text().count("\n") == 1 + presets * variants
    print(f"\n{name}: dashboard of one task: {timed_run(*drawn)}", end="")
    assert (page / "index.html").read_text().count("data-name=") == presets
