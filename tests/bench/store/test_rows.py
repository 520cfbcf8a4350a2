"""Plain rows are the rows of the table, for every question and lane."""

from dataclasses import replace

from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import questions
from attnbench.bench.store.rows import Run, newest
from attnbench.bench.store.table import Frame, frame_of

TIMES = [1.0, 1.02, 0.98]


def frame(bench: object) -> Frame:
    b = bench()
    b.train("rela", [0.5], digest="p1-t1-v1")
    b.train("softmax", [0.6, 0.61])
    b.train("softmax", [0.7], cell={"selection": "test"})
    b.train("rela", [0.5, 0.6], more=[Measurement.of("alpha", 1.5, layer=0, head=1)])
    b.add(b.cell("local"), outcome=Outcome.CRASHED, reason="boom", data=None, setting={})
    b.time("softmax", TIMES, TIMES)
    here = b.time("rela", TIMES, TIMES)
    b.records.append(replace(here, machine=replace(here.machine, id="box-2"), started="2030-01-01T00:00:00"))
    return frame_of(b.records)


def test_rows_are_those_of_the_table(bench) -> None:
    found = frame(bench)
    asked = questions(found)
    assert len(asked) == 4
    for question in asked:
        for lanes in (("train",), ("time",), ("train", "time", "baseline"), ("baseline",)):
            table, rows = question.cells(found, *lanes), question.runs(found, *lanes)
            assert [run.at for run in rows] == table.index.tolist()
            for name in Run._fields[1:]:
                assert [getattr(run, name) for run in rows] == table[name].tolist()


def test_what_is_stale_is_no_row(bench) -> None:
    found = frame(bench)
    stale = set(found.cells.index[found.cells["stale"] != ""])
    rows = {run.at for question in questions(found) for run in question.runs(found, "train", "time")}
    assert stale and rows | stale == set(found.cells.index) and not rows & stale


def test_the_newest_of_each_stands_where_it_was_started(bench) -> None:
    question = questions(found := frame(bench))[0]
    runs = question.runs(found, "train")
    last = {run.variant: run for run in runs}
    assert newest(runs, "variant") == sorted(last.values(), key=lambda run: run.at)
    assert newest([], "variant", "lane") == []
