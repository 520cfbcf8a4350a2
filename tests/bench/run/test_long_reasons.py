"""A plugin's message of any length costs its own cell: compilers and plugins write what they like."""

from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import MOST_REASON, Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate.build import Incorrect
from attnbench.bench.run.context import RecordBuilder, WorkerContext
from attnbench.bench.run.events import CellFinished, decode, encode
from attnbench.bench.store.store import Store
from attnbench.tasks.data.data import place


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Incorrect("x" * 150_000), Outcome.INCORRECT),
        (ValueError("x" * 150_000), Outcome.CRASHED),
        (MemoryError("x" * 50_000_000), Outcome.OUT_OF_MEMORY),
    ],
    ids=["gate", "crash", "memory"],
)
def test_a_long_message_becomes_a_record_that_the_parent_reads_and_the_store_keeps(
    tmp_path: Path, error: Exception, outcome: Outcome
) -> None:
    cell = Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=Spec("smoke"))
    store = Store(tmp_path)
    context = WorkerContext(
        job=Job(id="b", cells=(cell,), digests={cell.key: "d"}), place=place(offline=True), store=store,
        send=lambda event: None,
    )  # fmt: skip
    builder = RecordBuilder(context, cell)
    try:
        raise error
    except Exception as raised:
        found = decode(encode(CellFinished(builder.failure(raised))))
    assert isinstance(found, CellFinished)
    store.append(found.record, found.line)
    (stored,) = Store(tmp_path).records()
    assert stored == found.record and stored.outcome is outcome
    assert "x" * 400 in stored.reason and len(stored.reason) <= MOST_REASON + 1
