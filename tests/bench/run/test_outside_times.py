"""Times that contradict what the parent of a worker sees are an outcome of the foreign code alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from seeds import seed

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.run.events import CellFinished, RoundsEnded, SampleBegun, SampleEnded, Warned
from attnbench.bench.run.executors import outside_times
from attnbench.bench.run.executors.outside_times import OutsideTimes
from attnbench.bench.run.executors.run_job import Waiting, run_job, wait_for

MACHINE = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)

WORKER = """
import json, mmap, os, time
from attnbench.bench.process.child import decode_order
from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
job = decode_order(orders.readline())
machine = Machine(id="m", system="s", processor="p", cores=1, threads=1, memory_bytes=1)
said = {{cell.key: [] for cell in job.cells}}
SIZE = 256 * 2**20
kept = mmap.mmap(-1, SIZE)
foreign = any(cell.variant.name.endswith(":Mine") for cell in job.cells)
def send(**event): channel.write(json.dumps(event).encode() + b"\\n"); channel.flush()
for _ in range(5):
    for cell in job.cells:
        mine = cell.variant.name.endswith(":Mine")
        send(event="subject", key=cell.key)
        send(event="sample", key=cell.key)
        begun = time.perf_counter()
        time.sleep(0.03)
        seconds = time.perf_counter() - begun
        seconds = {seconds}
        said[cell.key].append(seconds)
        send(event="sampled", key=cell.key, seconds=seconds, cpu_seconds=0.0)
send(event="rounds")
for cell in job.cells:
    mine = cell.variant.name.endswith(":Mine")
    send(event="subject", key=cell.key)
    found = Measurement.of("step_seconds", 1.0, tuple({record}), repeats=1)
    for ended in ((), (1,)) if foreign else ():
        send(event="sampled" if ended else "sample", key=cell.key, waits=True)
        orders.readline()
        if mine and not ended:
            {sample}
    peak = Measurement.of("peak_bytes", {peak})
    record = Record(cell=cell, outcome=Outcome.OK, machine=machine, measurements=(found, peak))
    send(event="record", record=record.to_json())
"""


def timing(variant: str) -> Cell:
    return Cell(variant=Spec.parse(variant), task=Spec("sweep"), preset=Spec("smoke"), lane="time")


def ended(
    folder: Path, *, seconds: str = "seconds", record: str = "said[cell.key]", sample: str = "pass", peak: str = "1e6"
) -> tuple[dict[str, Record], int]:
    """The Records of a job with the reference and two variants, one of them foreign; and how many warnings came."""
    (folder / "mine.py").write_text("class Mine: pass", encoding="utf-8")
    script = folder / "worker.py"
    script.write_text(WORKER.format(seconds=seconds, record=record, sample=sample, peak=peak), encoding="utf-8")
    cells = tuple(timing(name) for name in ("softmax", "linear", f"{folder}/mine.py:Mine"))
    job = Job(id="b", cells=cells, digests={cell.key: "a-b-c" for cell in cells}, device="cpu", results=Path("r"),
              data_dir=None, offline=True)  # fmt: skip
    found: dict[str, Record] = {}
    warnings = 0
    for event in run_job(job, MACHINE, target=str(script)):
        if isinstance(event, Waiting):
            wait_for([event])
        elif isinstance(event, CellFinished):
            name = event.record.cell.variant.name.rpartition("/")[2]
            assert name not in found
            found[name] = event.record
        warnings += isinstance(event, Warned)
    return found, warnings


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"seconds": "seconds / 3 if mine else seconds"}, "by its own clock"),
        ({"seconds": "-0.06 if mine else seconds"}, "by its own clock"),
        # it makes the others look slow
        ({"seconds": "seconds if mine or not foreign else 3 * seconds"}, "beside it, "),
        ({"record": "[x / 2 for x in said[cell.key]] if mine else said[cell.key]"}, "other times"),
        ({"record": "said[cell.key] if mine or not foreign else [9.0] * 5"}, "other times"),
        # in a mapping that no allocator knows, kept or given back
        ({"sample": "kept[:] = bytes(SIZE)", "peak": "SIZE / 1.5"}, "171 MiB by its own count"),
        ({"sample": "bytearray(b'1') * SIZE"}, "1 MiB by its own count"),
        # in a file that lies in no folder, and in no page of the process
        ({"sample": "os.write(os.memfd_create('m'), bytes(2**25))", "peak": "2**26"}, "writes 32 MiB to files"),
    ],
)
def test_whoever_bends_a_clock_is_incorrect_and_nobody_else(case: dict[str, str], words: str, tmp_path: Path) -> None:
    found, warnings = ended(tmp_path, **case)
    assert found["mine.py:Mine"].outcome is Outcome.INCORRECT and words in found["mine.py:Mine"].reason
    assert found["softmax"].outcome is found["linear"].outcome is Outcome.OK
    assert warnings == 1


def test_honest_times_pass(tmp_path: Path) -> None:
    found, warnings = ended(tmp_path, sample="bytearray(b'1') * SIZE", peak="SIZE")
    assert {record.outcome for record in found.values()} == {Outcome.OK} and len(found) == 3 and not warnings


class Clocks:
    """A parent whose messages come late, as on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: float):
        self.now, self.late, self.draw = 0.0, late, random.Random(seed())
        monkeypatch.setattr(outside_times.time, "monotonic", lambda: self.now + self.draw.expovariate(1 / self.late))

    def rounds(self, tmp_path: Path, count: int, seconds: float, said: float) -> bool:
        """True if foreign code whose samples take `seconds`, and are said to take `said` of that, is blamed."""
        (tmp_path / "mine.py").write_text("class Mine: pass", encoding="utf-8")
        cells = [timing("softmax"), timing(f"{tmp_path}/mine.py:Mine")]
        times = OutsideTimes(lambda: float("nan"), on_gpu=False, threads=1)
        for _ in range(count):
            for cell in cells:
                times.note(SampleBegun(cell.key))
                self.now += seconds
                told = seconds * (1.0 if cell is cells[0] else said)
                times.note(SampleEnded(cell.key, told, told))
        return bool(times.blamed(RoundsEnded(), cells))


def test_late_messages_blame_nobody_and_hide_little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clocks = Clocks(monkeypatch, late=0.004)
    honest = [clocks.rounds(tmp_path, count, 0.012, said=1.0) for count in (3, 5, 10, 40) for _ in range(250)]
    # by chance in one of a hundred; the job is then timed again, and both times must contradict
    assert sum(honest) <= 20
    clocks = Clocks(monkeypatch, late=0.0003)
    assert all(clocks.rounds(tmp_path, count, 0.012, said=0.5) for count in (5, 10, 40) for _ in range(50))


def test_less_time_than_its_threads_computed_is_found_however_busy_the_machine_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: pass", encoding="utf-8")
    cells = [timing("softmax"), timing(f"{tmp_path}/mine.py:Mine")]

    def is_blamed(wall: float, threads: int, on_gpu: bool = False) -> bool:
        times = OutsideTimes(lambda: float("nan"), on_gpu, threads)
        for at in range(10):
            for cell in cells:
                times.note(SampleBegun(cell.key))
                # as late as messages of a busy machine are
                times._began = times._began[0], times._began[1] - 0.05 * (at % 3), times._began[2]
                times.note(SampleEnded(cell.key, wall if cell is cells[1] else 0.012, 0.012))
        return bool(times.blamed(RoundsEnded(), cells))

    assert is_blamed(0.004, threads=1) and is_blamed(0.003, threads=2)
    assert not (is_blamed(0.012, threads=1) or is_blamed(0.006, threads=2) or is_blamed(0.004, threads=1, on_gpu=True))


def test_a_record_without_times_needs_no_voucher() -> None:
    cell = timing("softmax")
    record = Record(cell=cell, outcome=Outcome.OK, machine=MACHINE)
    assert OutsideTimes(lambda: 0.0, on_gpu=False, threads=1).blamed(CellFinished(record), [cell]) == {}
    timed = Measurement.of("step_seconds", 1.0, (1.0,))
    record = Record(cell=cell, outcome=Outcome.OK, machine=MACHINE, measurements=(timed,))
    # of our own code alone, which tells nothing after each sample
    assert OutsideTimes(lambda: 0.0, on_gpu=False, threads=1).blamed(CellFinished(record), [cell]) == {}
