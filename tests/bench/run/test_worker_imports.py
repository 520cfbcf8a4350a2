"""What a worker imports: a GPU image that brings torch, triton and numpy needs few more."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.machine import describe
from attnbench.bench.plan.fingerprint import digest_of_cell
from attnbench.bench.process.child import Child, encode_order
from attnbench.bench.run.events import CellFinished
from attnbench.bench.run.executors.run_job import Waiting, run_job, wait_for
from attnbench.bench.run.gate_first import GateOrder
from attnbench.tasks.contract import DataPlace

ABSENT = {"entmax", "matplotlib", "pandas", "plotly", "pydantic", "ray", "rich", "scipy", "sklearn", "typer"}

WATCHED = """
import sys
import traceback
from pathlib import Path


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("scipy", "pandas"):
            with Path({said!r}).open("a") as file:
                file.write(name + " by " + "".join(traceback.format_stack()[-12:]))


sys.meta_path.insert(0, Watch())
from attnbench.bench.run.worker import main

code = main(orders, channel)
loaded = sorted({{name.split(".")[0] for name in sys.modules}} & {absent!r})
Path({ended!r}).write_text(" ".join(["ended", *loaded]))
raise SystemExit(code)
"""
"""The worker as it is, which also writes down who asks for scipy or pandas, and what is loaded at its end."""


@pytest.mark.slow
def test_a_worker_starts_without_statistics_tables_or_a_terminal() -> None:
    """scipy and pandas alone take two seconds of every child's start."""
    code = "import sys, attnbench.bench.run.worker; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    printed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    found = set(printed.split())
    assert {"torch", "numpy", "msgspec", "psutil", "attnbench"} <= found
    assert not found & ABSENT


class Worker:
    """A worker in a child; `told`: what it wrote down about its imports."""

    def __init__(self, folder: Path):
        self.script, self.said, self.ended = (folder / name for name in ("watched.py", "said", "ended"))
        paths = {"said": str(self.said), "ended": str(self.ended)}
        self.script.write_text(WATCHED.format(absent=ABSENT, **paths), encoding="utf-8")

    def require_clean(self) -> None:
        asked = self.said.read_text(encoding="utf-8") if self.said.exists() else ""
        assert self.ended.read_text(encoding="utf-8") == "ended", asked


@pytest.fixture
def worker(tmp_path: Path, place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setenv("ATTNBENCH_CACHE", str(place.cache))
    return Worker(tmp_path)


def cell(variant: str, task: str, lane: str, preset: str = "smoke") -> Cell:
    return Cell(variant=Spec.parse(variant), task=Spec.parse(task), preset=Spec.parse(preset), lane=lane)  # type: ignore[arg-type]


def run(worker: Worker, place: DataPlace, *cells: Cell) -> None:
    import torch

    job = Job(
        id="b", cells=cells, digests={one.key: digest_of_cell(one, None, "cpu") for one in cells},
        device="cpu",
        results=place.root.parent / "results", data_dir=place.root, offline=True, threads=1,
    )  # fmt: skip
    found = {}
    for event in run_job(job, describe(torch.device("cpu")), target=str(worker.script)):
        if isinstance(event, Waiting):
            wait_for([event])
        elif isinstance(event, CellFinished):
            found[event.record.key] = event.record
    for one in cells:
        assert found[one.key].outcome is Outcome.OK, found[one.key].reason
    worker.require_clean()


@pytest.mark.slow
def test_no_lane_imports_scipy_or_pandas(worker: Worker, place: DataPlace, tree: Path) -> None:
    """Tokens, classes, and translations with their BLEU, each with its metrics and artifacts; and points of a sweep.

    In one child, since the start of each takes seconds; what it wrote down names the importer.
    """
    texts = place.root / "pairs"
    texts.mkdir()
    words, draw = ("one", "two", "three", "four", "five", "six", "seven"), np.random.default_rng(0)
    for name, lines in (("train", 60), ("valid", 8), ("test", 8)):
        said = "".join(" ".join(draw.choice(words, 6)) + ".\n" for _ in range(lines))
        for language in ("en", "de"):
            (texts / f"{name}.{language}").write_text(said, encoding="utf-8")
    parallel = "parallel[path=pairs,source=en,target=de]"
    run(
        worker, place,
        cell("softmax", "recall", "train"),
        cell("softmax", "lra-text", "train"), cell("bag-of-bytes", "lra-text", "baseline"),
        cell("softmax", parallel, "train", "smoke[vocabulary=60]"),
        cell("untrained", parallel, "baseline", "smoke[vocabulary=60]"),
        *(cell("linear", f"sweep[length=16,heads=1,head_dim=8,mode={mode}]", "time", "smoke[timing_seconds=0.1]")
          for mode in ("step", "decode")),
    )  # fmt: skip


@pytest.mark.slow
def test_timings_and_their_gate_import_neither_scipy_nor_pandas(worker: Worker, place: DataPlace, tree: Path) -> None:
    run(worker, place, *(cell(name, "lra-text", "time", "smoke[timing_seconds=0.2]") for name in ("softmax", "linear")))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_sweep_imports_neither_scipy_nor_pandas(worker: Worker, place: DataPlace) -> None:
    task = "sweep[length=64,heads=2,head_dim=8,compile=true]"
    run(worker, place, *(cell(name, task, "time", "quick[timing_seconds=0.2]") for name in ("softmax", "linear")))


@pytest.mark.slow
def test_a_gate_ahead_imports_neither_scipy_nor_pandas(worker: Worker) -> None:
    sweep = cell("linear", "sweep[length=64,heads=2,head_dim=8]", "time", "quick")
    with Child(str(worker.script)) as child:
        child.send(encode_order(GateOrder(cells=(sweep,), device="cpu", data_dir=None, offline=True, threads=1)))
        assert child.receive(300.0) is None
    worker.require_clean()
