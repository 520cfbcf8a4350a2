"""How long boards take at scale: pytest tests/perf/test_board_scale.py (10,000 Records, 20 variants a task)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.cell import Cell
from attnbench.bench.cli.leaderboard import Format, leaderboard
from attnbench.bench.cli.pages import dashboard
from attnbench.bench.record import Machine, Measurement, Outcome, Provenance, Record
from attnbench.bench.spec import Spec

COUNT = 10_000
VARIANTS = ("softmax", *(f"variant{at}" for at in range(19)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    (root / "records").mkdir()
    machine = Machine(id="box", system="Linux", processor="Abacus", cores=2, threads=2, memory_bytes=2**33)
    rng = np.random.default_rng(0)
    lines = []
    for at in range(COUNT // (6 * len(VARIANTS))):
        for variant in VARIANTS:
            for seed in range(6):
                lane = "train" if seed < 5 else "time"
                cell = Cell(
                    variant=Spec(variant), task=Spec(f"task{at}"), preset=Spec("quick"), seed=seed % 5, lane=lane
                )
                rounds = tuple(np.exp(rng.normal(0, 0.02, 20)).tolist())
                heads = [Measurement.of("sparsity", 0.5, layer=at, head=head) for at in range(2) for head in range(2)]
                share = Measurement.of("accuracy", float(rng.normal(0.6, 0.01)), split="test", examples=1000)
                times = [Measurement.of(f"{name}step_seconds", 1.0, rounds) for name in ("", "reference_", "null_")]
                record = Record(
                    cell=cell, outcome=Outcome.OK, machine=machine, digest="a-b-c", started=f"2026-01-01T{at:08}",
                    data=Provenance(source="generator", fidelity="regenerated"), block=f"task{at}",
                    measurements=(share, *heads) if lane == "train" else tuple(times),
                )  # fmt: skip
                lines.append(json.dumps(record.to_json()))
    (root / "records" / "box.jsonl").write_text("\n".join(lines) + "\n")
    return root


def test_leaderboard(benchmark: object, results: Path, tmp_path: Path) -> None:
    benchmark.pedantic(
        leaderboard, kwargs={"results": results, "format": Format.CSV, "out": tmp_path / "board.csv"}, rounds=1
    )
    assert (tmp_path / "board.csv").read_text().count("\n") > 1000


def test_dashboard(benchmark: object, results: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    benchmark.pedantic(dashboard, kwargs={"results": results, "out": tmp_path}, rounds=1)
    assert (tmp_path / "index.html").stat().st_size > 1e6
