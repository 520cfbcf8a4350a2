"""History: a row for each variant, day and code, by what the Records say of themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.api import boards as api
from attnbench.bench.board.history import board_of_history
from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.record import Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of

OLD, NEW = "2026-01-02T10:00:00+00:00", "2026-02-03T10:00:00+00:00"


def test_each_day_and_code_of_a_variant_is_a_row_and_the_oldest_is_first(bench) -> None:
    b = bench()
    b.train("rela", [0.5, 0.6], digest="p1-t1-c1c1c1c1c1", started=NEW)
    b.train("softmax", [0.7, 0.8, 0.9], started=OLD)
    made_by = {"attnbench": "0.2.0", "harness": "0123456789abcdef"}
    described = replace(b.records[0].machine, versions=made_by)
    b.add(b.cell("rela", 2), outcome=Outcome.TIMEOUT, digest="p1-t1-c1c1c1c1c1", started=NEW, machine=described)
    b.add(b.cell("majority", lane="baseline"), started=OLD)
    table = table_of(b.records)
    (key,) = board_keys(table)
    found = board_of_history(table, key)
    shown = [(row.name, *(cell.text for cell in row.entries)) for _, row in found.rows]
    assert shown == [
        ("softmax", "2026-01-02", "3 trainings: accuracy 80.0", "unknown version, variant v1", "yes"),
        ("rela", "2026-02-03", "2 trainings: accuracy 55.0", "unknown version, variant c1c1c1c1", "yes"),
        ("rela", "2026-02-03", "1 training, 1 without result", "0.2.0, harness 01234567, variant c1c1c1c1", "yes"),
    ]
    assert [len(row.records) for _, row in found.rows] == [3, 2, 1]


def test_a_number_that_no_longer_counts_stays_in_the_history_with_the_reason(bench, tmp_path: Path) -> None:
    b = bench()
    for digest, day, share in (("p1-t1-v1", OLD, 0.5), ("p1-t1-v2", NEW, 0.9)):
        for name in ("softmax", "rela", "linear"):
            b.train(name, [share] * 3, digest=digest, started=day)
    store = Store(tmp_path)
    store.prepare()
    for record in b.records:
        store.append(record)
    (board,) = api.boards(tmp_path, history=True)
    states = {(row.name, row.entries[0].text): row.entries[3].shown("brief") for _, row in board.rows}
    assert {states[name, "2026-01-02"] for name in ("softmax", "rela", "linear")} == {"no"}
    assert {states[name, "2026-02-03"] for name in ("softmax", "rela", "linear")} == {"yes"}
    reasons = {row.entries[3].text for _, row in board.rows if row.entries[0].text == "2026-01-02"}
    assert reasons == {"no: of other code of the variant, or of the kernels of another kind of device"}
    with pytest.raises(AttnbenchError, match="no Records of task"):
        api.boards(tmp_path, task="max", history=True)
