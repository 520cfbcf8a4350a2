"""Rows are those that agree with a board key, for every board and lane."""

from dataclasses import replace

from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.rows import newest
from attnbench.bench.store.table import ResultTable, table_of

TIMES = [1.0, 1.02, 0.98]


def frame(bench: object) -> ResultTable:
    b = bench()
    b.train("rela", [0.5], digest="p1-t1-v1")
    b.train("softmax", [0.6, 0.61])
    b.train("softmax", [0.7], cell={"selection": "test"})
    b.train("rela", [0.5, 0.6], more=[Measurement.of("alpha", 1.5, layer=0, head=1)])
    b.add(b.cell("local"), outcome=Outcome.CRASHED, reason="boom", data=None, setting={})
    b.time("softmax", TIMES, TIMES)
    here = b.time("rela", TIMES, TIMES)
    b.records.append(replace(here, machine=replace(here.machine, id="box-2"), started="2030-01-01T00:00:00"))
    return table_of(b.records)


def test_rows_of_a_board_are_the_current_ones_that_agree_with_its_key(bench) -> None:
    found = frame(bench)
    asked = board_keys(found)
    assert len(asked) == 4
    for key in asked:
        shared = [
            row
            for row in found.rows
            if not row.stale
            and (row.task, row.preset, row.fidelity, row.protocol) == (key.task, key.preset, key.fidelity, key.protocol)
        ]
        own = {
            "train": [row for row in shared if row.lane == "train" and row.selection == key.selection],
            "time": [row for row in shared if row.lane == "time" and row.machine == key.machine],
            "baseline": [],
        }
        for lanes in (("train",), ("time",), ("train", "time", "baseline"), ("baseline",)):
            assert key.runs(found, *lanes) == sorted(row for lane in lanes for row in own[lane])


def test_a_row_holds_the_parts_of_its_record_as_text(bench) -> None:
    found = frame(bench)
    assert [row.at for row in found.rows] == list(range(len(found.rows)))
    for row, record in zip(found.rows, found.records, strict=True):
        assert (row.key, row.variant, row.seed) == (record.key, str(record.cell.variant), record.cell.seed)
        assert (row.task, row.preset, row.lane) == (str(record.cell.task), str(record.cell.preset), record.cell.lane)
        assert (row.outcome, row.reason, row.block) == (str(record.outcome), record.reason, record.block)
        assert (row.selection, row.protocol) == (record.cell.selection, record.cell.protocol)
        assert (row.machine, row.started, row.seconds) == (record.machine.id, record.started, record.seconds)
        assert (row.setting, row.artifacts, row.metric) == (record.setting, record.artifacts, record.metric)
        parts = (row.version, row.data_code, row.variant_code)
        assert parts == ("version 0", *record.digest.rsplit("-", 1))
        data = record.data
        assert row.unplaced == (data is None) and row.fidelity == "official"
        assert (row.source, row.notes, row.counts) == ((data.source, data.notes, data.counts) if data else ("", (), {}))
        assert row.implementation == record.implementation


def test_what_is_stale_is_no_row(bench) -> None:
    found = frame(bench)
    stale = {row.at for row in found.rows if row.stale}
    rows = {row.at for key in board_keys(found) for row in key.runs(found, "train", "time")}
    assert stale and rows | stale == set(range(len(found.rows))) and not rows & stale


def test_the_newest_of_each_stands_where_it_was_started(bench) -> None:
    board_key = board_keys(found := frame(bench))[0]
    runs = board_key.runs(found, "train")
    last = {run.variant: run for run in runs}
    assert newest(runs, "variant") == sorted(last.values(), key=lambda run: run.at)
    assert newest([], "variant", "lane") == []
