"""Plain rows are the rows of the table, for every question and lane."""

from dataclasses import replace

from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.rows import ResultRow, newest
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


def test_rows_are_those_of_the_table(bench) -> None:
    found = frame(bench)
    asked = board_keys(found)
    assert len(asked) == 4
    for board_key in asked:
        for lanes in (("train",), ("time",), ("train", "time", "baseline"), ("baseline",)):
            table, rows = board_key.cells(found, *lanes), board_key.runs(found, *lanes)
            assert [run.at for run in rows] == table.index.tolist()
            for name in ResultRow._fields[1:]:
                assert [getattr(run, name) for run in rows] == table[name].tolist()


def test_what_is_stale_is_no_row(bench) -> None:
    found = frame(bench)
    stale = set(found.cells.index[found.cells["stale"] != ""])
    rows = {run.at for board_key in board_keys(found) for run in board_key.runs(found, "train", "time")}
    assert stale and rows | stale == set(found.cells.index) and not rows & stale


def test_the_newest_of_each_stands_where_it_was_started(bench) -> None:
    board_key = board_keys(found := frame(bench))[0]
    runs = board_key.runs(found, "train")
    last = {run.variant: run for run in runs}
    assert newest(runs, "variant") == sorted(last.values(), key=lambda run: run.at)
    assert newest([], "variant", "lane") == []
