"""The first complete set of a variant counts: no later one of fewer seeds, and no added seeds of a loser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from boards import entry, row, text
from msgspec import structs

import attnbench
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.record import Record
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of

ROOT = Path(attnbench.__file__).parent


def committed(variant: str, task: str = "selective-copy") -> list[Record]:
    """The Records that a board of the task is made of: of one variant, softmax, and trivial predictors."""
    return [
        record
        for record in Store(ROOT / "results").records()
        if record.cell.task.name == task
        and record.cell.lane in ("train", "baseline")
        and (record.cell.lane == "baseline" or str(record.cell.variant) in (variant, "softmax"))
    ]


def forged(records: list[Record], variant: str, code: str, seeds: range, score: float) -> list[Record]:
    """Copies of a variant's Records at these seeds, with another code and a low score, from a later day."""
    by_seed = {r.cell.seed: r for r in records if str(r.cell.variant) == variant and r.cell.lane == "train"}
    found = []
    for seed in seeds:
        honest = by_seed[seed % len(by_seed)]
        tested = tuple(
            structs.replace(m, value=score) if m.name == "accuracy" and m.where.get("split") == "test" else m
            for m in honest.measurements
        )
        digest = f"{honest.digest.rpartition('-')[0]}-{code or honest.digest.rpartition('-')[2]}"
        cell = replace(honest.cell, seed=seed)
        started = "2026-12-24T00:00:00+00:00"
        found.append(replace(honest, cell=cell, digest=digest, measurements=tested, artifacts={}, started=started))
    return found


def board_of(records: list[Record]):
    table = table_of(records)
    return board_for_task(table, board_keys(table, task="selective-copy")[0])


@pytest.mark.parametrize("variant", ["entmax15", "softmax"])
def test_a_later_set_of_fewer_seeds_takes_no_row(variant: str) -> None:
    """Six forged seeds of a later day beside twelve honest ones."""
    honest = committed("entmax15")
    sent = forged(honest, variant, "deadbeef00", range(6), 0.298)
    before, after = board_of(honest), board_of([*honest, *sent])
    assert entry(after, variant, "accuracy") == entry(before, variant, "accuracy")
    assert entry(after, "entmax15", "gap") == entry(before, "entmax15", "gap")
    assert "fewer seeds than the code that counts" in text(after, "not counted")


def test_added_seeds_of_a_loser_widen_no_other_interval() -> None:
    honest = [*committed("entmax15"), *(r for r in committed("rela") if str(r.cell.variant) == "rela")]
    after = board_of([*honest, *forged(honest, "entmax15", "", range(12, 20), 0.2)])
    before = board_of(honest)
    for name in ("rela", "softmax"):
        assert entry(after, name, "accuracy") == entry(before, name, "accuracy")
        assert entry(after, name, "gap") == entry(before, name, "gap")
    assert entry(after, "entmax15", "gap") == entry(before, "entmax15", "gap")


def test_a_set_of_as_many_seeds_takes_a_row_over_and_the_first_note_says_so(bench: Callable[..., object]) -> None:
    b = bench()
    for name in ("softmax", "rela"):
        b.train(name, [0.6, 0.61, 0.62])
    first = len(b.records)
    b.train("rela", [0.7, 0.71])
    code = "deadbeef00"
    b.records[first:] = [replace(r, digest=f"{r.digest.rpartition('-')[0]}-{code}") for r in b.records[first:]]

    def board():
        table = table_of(b.records)
        return board_for_task(table, board_keys(table)[0], predictions=b.predictions)

    assert entry(board(), "rela", "accuracy").value == pytest.approx(61) and not text(board(), "taken over")
    b.train("rela", [0.7, 0.71, 0.72])
    b.records[-3:] = [replace(r, digest=f"{r.digest.rpartition('-')[0]}-{code}") for r in b.records[-3:]]
    found = board()
    assert entry(found, "rela", "accuracy").value == pytest.approx(71) and row(found, "rela").place
    assert found.notes[0].topic == "taken over" and f"rela (code {code} in place of 3 seeds of " in found.notes[0].text
