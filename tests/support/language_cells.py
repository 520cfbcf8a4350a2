"""Cells of language modelling, trained in this process on a poem."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.fingerprint import digest_of_cell
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.lanes.baseline import baseline_cell
from attnbench.bench.run.lanes.train import train_cell
from attnbench.bench.store.store import Store
from attnbench.tasks.contract import DataPlace

POEM = "Über allen Gipfeln ist Ruh,\nin allen Wipfeln spürest du\nkaum einen Hauch.\n" * 4


def context_with_poem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    monkeypatch.delenv("ATTNBENCH_DATA", raising=False)
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    books = tmp_path / "root" / "gutenberg"
    books.mkdir(parents=True)
    (books / "poem.txt").write_text(POEM * 20, encoding="utf-8")
    place = DataPlace(root=books.parent, cache=tmp_path / "cache", offline=True, notice=lambda text: None)
    store = Store(tmp_path / "results", lambda text: None)
    return WorkerContext(job=Job(id="", cells=(), digests={}), place=place, store=store, send=lambda event: None)


def done(context: WorkerContext, variant: str, lane: str = "train", task: str = "gutenberg-char") -> Record:
    preset = Spec.parse("smoke[steps=4,evaluate_every=2,layers=1]")
    cell = Cell(variant=Spec.parse(variant), task=Spec.parse(task), preset=preset, lane=lane)  # type: ignore[arg-type]
    context.job.digests[cell.key] = digest_of_cell(cell, None, "cpu")
    record = baseline_cell(context, cell) if lane == "baseline" else train_cell(context, cell)
    context.store.append(record)
    return record
