"""Events survive their wire, and anything else on it is one named error."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.process.child import PACKED, encode_line
from attnbench.bench.run import worker
from attnbench.bench.run.events import (
    Alive,
    CellFinished,
    CellStarted,
    Event,
    Failed,
    JobStarted,
    LengthTried,
    SampleEnded,
    Stage,
    TrainingProgress,
    Warned,
    decode,
    encode,
)

RECORD = Record(
    cell=Cell(variant=Spec("rela"), task=Spec("lra-text"), preset=Spec("smoke")),
    outcome=Outcome.OK,
    measurements=(Measurement.of("loss", float("inf"), split="test"),),
    machine=Machine(id="box-1", system="Linux", processor="p", cores=2, threads=2, memory_bytes=1),
)


@pytest.mark.parametrize(
    "event",
    [
        CellStarted("k"), CellFinished(RECORD), TrainingProgress("k", 1, 2, "accuracy", 0.5, None), Stage("k", "test"),
        Alive("k"), Warned("w"), Failed("f", 3), LengthTried(2.0), LengthTried(None, "because"),
    ],
)  # fmt: skip
def test_events_survive_their_wire(event: Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and decode(line) == event


def test_a_message_that_is_no_unicode_is_passed_on_in_ascii() -> None:
    assert decode(encode(Warned("bad \udcff name"))) == Warned(r"bad \udcff name")


def test_what_a_plugin_says_too_much_is_cut() -> None:
    for event in (Warned("x" * 10**6), Failed("x" * 10**6, 3)):
        found = decode(encode(event))
        assert isinstance(found, Warned | Failed) and 100 < len(found.message) < 10_000
    tried = decode(encode(LengthTried(None, "x" * 10**6)))
    assert isinstance(tried, LengthTried) and 100 < len(tried.error) < 10_000


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n", b"\xff\n", b"[" * 100_000, b"{}", b"[]", b'{"event":"party"}', b'{"event":"alive"}',
        b'{"event":"alive","key":1}', b'{"event":"alive","key":"\\ud800"}', b'{"event":"record","record":{}}',
        b'{"event":"progress","key":"k","done":-1,"of":2,"metric":"m"}',
        b'{"event":"began","time":1e12,"machine":{"id":"m","system":"s","processor":"p","cores":1,"threads":1,'
        b'"memory_bytes":1}}',
        b'{"event":"error","message":"' + b"x" * 200_000 + b'","exit_code":1}',
    ],
)  # fmt: skip
def test_anything_else_is_one_short_error(line: bytes) -> None:
    with pytest.raises(StoreError) as raised:
        decode(line)
    assert len(str(raised.value)) < 400


def test_a_packed_line_is_no_event() -> None:
    """msgpack has numbers that are none, which would pass every comparison of times."""
    line = encode_line(SampleEnded("k", float("nan"), 1.0), packed=True)
    with pytest.raises(StoreError, match="no event"):
        decode(PACKED + line.split(b"\n", 1)[1])


def test_a_worker_whose_clock_stands_before_1970_says_so_in_an_event_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.time, "time", lambda: -0.5)
    sent: list[Event] = []
    assert not [*worker.records_of(Job(id="one", cells=(), digests={}, results=tmp_path), sent.append)]
    assert [decode(encode(event)) for event in sent] == sent and isinstance(sent[0], JobStarted)
