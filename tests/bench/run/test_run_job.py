"""A child that crashes, is killed, hangs or is too slow becomes an outcome, and the others of its job go on."""

import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Machine, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.process.child import decode_order, encode_order
from attnbench.bench.run.events import CellFinished
from attnbench.bench.run.executors.run_job import Waiting, WorkerError, run_job, wait_for
from attnbench.bench.run.lanes.max_length import MaxLengthOrder

MACHINE = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)

PREAMBLE = """
import dataclasses, json, os, signal, sys, time
from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.process.child import decode_order
from attnbench.bench.core.record import Machine, Outcome, Record
job = decode_order(orders.readline())
def send(**event): channel.write(json.dumps(event).encode() + b"\\n"); channel.flush()
def finish(cell):
    machine = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)
    send(event="record", record=Record(cell=cell, outcome=Outcome.OK, machine=machine).to_json())
"""

EACH = """
for cell in job.cells:
    send(event="subject", key=cell.key)
    if str(cell.variant) == "bad":
        {fault}
    finish(cell)
"""


def job(*variants: str) -> Job:
    cells = tuple(Cell(variant=Spec(name), task=Spec("t"), preset=Spec("smoke")) for name in variants)
    digests = {cell.key: "a-b-c" for cell in cells}
    return Job(
        id="b",
        cells=cells,
        digests=digests,
        device="cpu",
        results=Path("r"),
        data_dir=None,
        offline=True,
    )


def outcomes(tmp_path: Path, fault: str, *variants: str, **limits: float) -> dict[str, Record]:
    script = tmp_path / "worker.py"
    script.write_text(PREAMBLE + EACH.format(fault=textwrap.dedent(fault)), encoding="utf-8")
    kept: dict[str, Record] = {}

    def keep(record: Record) -> None:
        assert str(record.cell.variant) not in kept
        kept[str(record.cell.variant)] = record

    sent = replace(job(*variants), timeout=limits.pop("timeout", None))
    for event in run_job(sent, MACHINE, target=str(script), **limits):
        if isinstance(event, Waiting):
            wait_for([event])
        elif isinstance(event, CellFinished):
            keep(event.record)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("os._exit(3)", Outcome.CRASHED, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Outcome.CRASHED, "SIGSEGV"),
        ("raise ValueError('what went wrong')", Outcome.CRASHED, "what went wrong"),
    ],
)
def test_the_culprit_gets_its_outcome_and_the_others_theirs(
    tmp_path: Path, fault: str, outcome: Outcome, words: str
) -> None:
    found = outcomes(tmp_path, fault, "one", "bad", "two")
    assert {name: record.outcome for name, record in found.items()} == {
        "one": Outcome.OK, "bad": outcome, "two": Outcome.OK,
    }  # fmt: skip
    assert words in found["bad"].reason
    assert found["bad"].digest == "a-b-c"
    assert found["bad"].machine == MACHINE


@pytest.mark.slow
def test_a_hang_is_a_timeout_that_says_so(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "time.sleep(60)", "bad", "two", stall=1.5)
    assert found["bad"].outcome is Outcome.TIMEOUT
    assert "no sign of life" in found["bad"].reason
    assert found["two"].outcome is Outcome.OK


def test_a_child_that_talks_on_is_still_under_the_time_limit(tmp_path: Path) -> None:
    fault = "[(send(event='alive', key=cell.key), time.sleep(0.05)) for _ in range(400)]"
    started = time.monotonic()
    found = outcomes(tmp_path, fault, "bad", timeout=0.7)
    assert found["bad"].outcome is Outcome.TIMEOUT
    assert "time limit" in found["bad"].reason
    assert time.monotonic() - started < 15


def test_a_child_that_dies_in_mid_sentence_is_an_outcome(tmp_path: Path) -> None:
    fault = 'channel.write(b\'{"event": "rec\'); channel.flush(); os.kill(os.getpid(), signal.SIGKILL)'
    found = outcomes(tmp_path, fault, "bad", "two")
    assert found["bad"].outcome is Outcome.CRASHED
    assert "SIGKILL" in found["bad"].reason
    assert found["two"].outcome is Outcome.OK


@pytest.mark.slow
def test_the_time_before_the_first_word_of_a_child_is_that_of_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first child of a run waits until its server has imported torch."""
    monkeypatch.setattr(sys.modules[__name__], "PREAMBLE", PREAMBLE + "time.sleep(1.5)\n")
    found = outcomes(tmp_path, "pass", "one", timeout=1.0)
    assert found["one"].outcome is Outcome.OK


def test_what_the_user_must_cure_is_raised_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="no reviews here") as caught:
        outcomes(tmp_path, "send(event='error', message='no reviews here', exit_code=3); sys.exit(3)", "bad")
    assert caught.value.exit_code == 3


def test_jobs_survive_their_text() -> None:
    sent = job("one", "two")
    assert decode_order(encode_order(sent)) == sent
    spec = Spec.of("sweep", alpha=1.0, heads=2, mode="step", flag=True, nothing=None)
    cell = Cell(variant=spec, task=spec, preset=Spec("smoke"))
    other = MaxLengthOrder(cell=cell, device="cpu", threads=1, memory_bytes=5)
    found = decode_order(encode_order(other))
    assert found == other and found.cell.key == cell.key
    with pytest.raises(msgspec.ValidationError, match="memory_bytes"):
        decode_order(encode_order(other).replace(b":5", b':"5"'))
