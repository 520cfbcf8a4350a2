"""Run a job in a child process, and turn its death, its silence or a time limit into outcomes of Cells."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.cell import Cell, Job
from ...core.errors import AttnbenchError, DeviceError, SelectionError
from ...core.record import Machine, Measurement, Outcome, Record, Started
from ...core.registry import VARIANTS
from ...process.child import ChannelError, Child, encode_order, wait_for_any
from ..events import (
    CellFinished,
    CellStarted,
    Event,
    Failed,
    JobStarted,
    Restarted,
    RoundsEnded,
    SampleBegun,
    SampleEnded,
    Warned,
    decode,
    reached,
)
from ..global_state import StateWatch
from .outside_times import OutsideTimes

WORKER = "attnbench.bench.run.worker"
"""The module that runs jobs in a child."""

STALL_SECONDS = 900.0
"""A child that says nothing for so long is taken to hang; training says something twice a second."""

GOODBYE_SECONDS = 5.0
"""The time that a child may take to exit after its last event, before it is killed."""

MOST_STARTS = 3
"""The most times that a child is asked for whose server dies before it starts."""

ENGINE_SECONDS = 1.0
"""The time by which this process may hear later than a child that an engine ends both."""

_SPEED = "1/second"

DESCRIBE_SECONDS = 300.0
"""The time that a child may take to start and to describe its machine."""


class WorkerError(AttnbenchError):
    """A mistake or lack that the child met and that the user must cure, such as missing data."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeOrder:
    """Describe the machine as it is with `device`, in a process that may use it; `threads` as of a job."""

    device: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOrder:
    """Test once more the trained model of the one Cell of `job`, in a process that imports no foreign attention."""

    job: Job


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job has nothing to tell until its child speaks, or until a time of the monotonic clock."""

    child: Child
    until: float


def wait_for(several: Sequence[Waiting]) -> None:
    """Wait until one of them may go on."""
    seconds = min(each.until for each in several) - time.monotonic()
    wait_for_any([each for waiting in several for each in waiting.child.open], max(seconds, 0.0))


def run_job(
    job: Job, machine: Machine, *, stall: float = STALL_SECONDS, target: str = WORKER, scores: bool = False
) -> Generator[Event | Waiting, None, None]:
    """Yields events until every Cell of `job` has ended in a CellFinished, also where its process died.

    Between them it yields Waiting, so that one loop can run several jobs; whoever has but one passes it to `wait_for`.
    The Cell that was at work when the process died gets that outcome, and a new process does the others without it.
    `machine`: what the Records of the dead carry until a child has described its own. `scores`: trained models are
    tested once more, which follows by itself where foreign code was trained. Closing the iterator ends the child.
    Raises WorkerError where the user must act.
    """
    device = job.device if not job.gpu else f"cuda {job.gpu}"
    unstarted, doubted = 0, False
    while job.cells:
        StateWatch.undo_from_outside()
        begun, kills = Started(), oom_kills()
        left = {cell.key: cell for cell in job.cells}
        current = reason = ""
        outcome = Outcome.CRASHED
        claims: list[Record] = []
        # that the first server of a run imports torch is not the time of a Cell
        ends: float | None = None
        # A fresh process for each job: caches, compiled kernels, allocator state and threads of earlier Cells would
        # otherwise be part of the measurement, and a corrupted process would spoil all that follow.
        with Child(target, environment_of(job.threads, job.gpu)) as child:
            child.send(encode_order(ScoreOrder(job=job) if scores else job))
            restarted = False
            threads = job.threads or machine.cores
            times = OutsideTimes(child.processor_seconds, device.startswith("cuda"), threads, child.touched_bytes)
            while left:
                # Two limits: silence, which means a hang, and the time that the person allows to a Cell, however much
                # it reports.
                silent = time.monotonic() + stall
                line = event = None
                try:
                    line = yield from _line(child, silent if ends is None else min(silent, ends))
                    event = None if line is None else decode(line)
                    strange = ""
                except TimeoutError:
                    over = ends is not None and time.monotonic() >= ends
                    reason = f"over the time limit of {job.timeout:g} s" if over else f"no sign of life for {stall:g} s"
                    outcome = Outcome.TIMEOUT
                    break
                except ChannelError as error:
                    strange = str(error)
                except AttnbenchError:
                    strange = f"it wrote on its channel what is no event: {(line or b'')[:60]!r}"
                if isinstance(event, CellFinished) and event.record.cell != left.get(event.record.key):
                    strange = "it wrote a Record of a cell that it was not to measure"
                if strange:
                    reason = f"{strange}; only the harness writes there"
                    break
                if event is None:
                    break
                if isinstance(event, Failed):
                    raise WorkerError(event.message, event.exit_code)
                if isinstance(event, SampleBegun | SampleEnded):
                    times.note(event)
                    if event.waits:
                        child.send(b"\n")
                    continue
                if isinstance(event, Restarted):
                    restarted = True
                    break
                if blamed := times.blamed(event, left.values()):
                    restarted = True
                    # once it may be the machine
                    if not doubted:
                        doubted, (cell, why) = True, next(iter(blamed.items()))
                        yield Warned(f"{cell.variant}: {why}; its job is timed again")
                        break
                    for cell, why in blamed.items():
                        left.pop(cell.key)
                        yield CellFinished(_failed(job, cell, Outcome.INCORRECT, why, begun, machine, device))
                    break
                if isinstance(event, RoundsEnded):
                    continue
                if isinstance(event, JobStarted):
                    machine, device = event.machine, event.device
                    ends = time.monotonic() + job.timeout if job.timeout else None
                elif isinstance(event, CellFinished):
                    left.pop(event.record.key)
                    if not scores and _is_claim(event.record):
                        claims.append(event.record)
                        continue
                elif isinstance(event, CellStarted) and event.key != current:
                    # the limit is of one Cell; in the time lane Cells take turns, and each turn counts by itself
                    current, ends = event.key, time.monotonic() + job.timeout if job.timeout else None
                yield event
            child.end(0.0 if reason or restarted else GOODBYE_SECONDS)
        for claim in claims:
            for scored in run_job(replace(job, cells=(claim.cell,)), machine, stall=stall, target=target, scores=True):
                yield CellFinished(_joined(claim, scored.record)) if isinstance(scored, CellFinished) else scored
        job = replace(job, cells=tuple(left.values()))
        if not child.has_started and (unstarted := unstarted + 1) < MOST_STARTS:
            continue
        if not left or restarted:
            continue
        if child.exit_code in (-signal.SIGTERM, -signal.SIGKILL) and job.executor != "local":
            # an engine that takes the machine away tells all processes at once; ours may hear it after the child's end
            time.sleep(ENGINE_SECONDS)
        # A process that died before any Cell started is blamed on the first, so that the loop always ends.
        ended = left.get(current, job.cells[0])
        if not reason:
            outcome, reason = classify_exit(child.exit_code, child.last_errors, oom_kills() > kills)
        yield CellFinished(_failed(job, ended, outcome, reason, begun, machine, device))
        job = replace(job, cells=tuple(cell for cell in job.cells if cell != ended))


def _failed(
    job: Job, cell: Cell, outcome: Outcome, reason: str, begun: Started, machine: Machine, device: str
) -> Record:
    return Record.of(
        cell, outcome, reason, begun, machine=machine, digest=job.digests[cell.key], block=job.id,
        executor=job.executor, node=job.node, device=device,
    )  # fmt: skip


def _is_claim(record: Record) -> bool:
    """True for a training whose score was computed where foreign code was."""
    if record.outcome is not Outcome.OK or record.cell.lane not in ("train", "tune"):
        return False
    # what is in no registry cannot be built again
    with suppress(SelectionError):
        return not VARIANTS.is_own(record.cell.variant.name)
    return False


def _joined(claim: Record, scored: Record) -> Record:
    """The Record of a training with the score of another process; incorrect where its own has claimed another."""
    if scored.outcome is not Outcome.OK:
        return replace(claim, outcome=scored.outcome, reason=scored.reason, measurements=(), artifacts={})
    # speeds are those of the training's process: in the other one each call crosses to a child
    found = {_place(each): each for each in scored.measurements if each.unit != _SPEED}
    for each in claim.measurements:
        again = found.get(_place(each))
        if again and claim.metric and each.name == claim.metric.name and _differ(each, again):
            was, now = (reached(each.name, x.value) for x in (each, again))
            reason = f"{was} where it was trained, and {now} in a process without its code, from the same parameters"
            return replace(claim, outcome=Outcome.INCORRECT, reason=reason)
    rest = [
        each for each in claim.measurements
        if _place(each) not in found and ("split" not in each.where or each.unit == _SPEED)
    ]  # fmt: skip
    return replace(claim, measurements=(*found.values(), *rest), artifacts={**claim.artifacts, **scored.artifacts})


def _place(measurement: Measurement) -> tuple[str, str]:
    return measurement.name, str(sorted(measurement.where.items()))


def _differ(claimed: Measurement, again: Measurement) -> bool:
    """True beyond what a layer that draws at evaluation explains."""
    noise = 2 / math.sqrt(claimed.where.get("examples", 1))
    return abs(claimed.value - again.value) > 0.02 * max(1.0, abs(again.value)) + noise


def environment_of(threads: int, gpu: str = "") -> dict[str, str]:
    """Variables that fix the threads of every library, and the GPU, before any is imported; none for 0 and ""."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    found = dict.fromkeys(names, str(threads)) if threads else {}
    return found | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


def _line(child: Child, until: float) -> Generator[Waiting, None, bytes | None]:
    """The next line of the child, None after the last one; raises TimeoutError where none comes `until` then."""
    while True:
        try:
            return child.receive(0.0)
        except TimeoutError:
            if time.monotonic() >= until:
                raise
        yield Waiting(child, until)


def describe_in_child(device: str, threads: int) -> list[Machine]:
    """This machine with each of its GPUs, as a child sees them, or with the one that `device` names.

    This process makes no CUDA context, which would take memory of every GPU. Raises DeviceError.
    """
    found: list[Machine] = []
    with Child(WORKER, environment_of(threads)) as child:
        child.send(encode_order(DescribeOrder(device=device, threads=threads)))
        try:
            while (line := child.receive(DESCRIBE_SECONDS)) is not None:
                event = decode(line)
                if isinstance(event, JobStarted):
                    found.append(event.machine)
        except (TimeoutError, ChannelError, AttnbenchError) as error:
            raise DeviceError(f"{device} cannot be used: {str(error) or 'no answer'}") from None
        if not found:
            raise DeviceError(f"{device} cannot be used: {child.death}")
    return found


def classify_exit(code: int, errors: str, oom_killed: bool) -> tuple[Outcome, str]:
    """The outcome of a process that ended by itself or by a signal, and the reason that its Record gives."""
    if code == -signal.SIGKILL and oom_killed:
        return Outcome.OUT_OF_MEMORY, "killed by the system because memory ran out"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Outcome.CRASHED, f"the process ended with {name}" + (
        f"; its error stream ended with: {errors}" if errors else ""
    )


def oom_kills() -> int:
    """The count of processes that the system has killed for memory in this control group; 0 where it does not tell.

    SIGKILL alone does not tell its sender: a person, or the kernel because memory ran out, which counts those.
    """
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            for line in Path(path).read_text(encoding="ascii").split("\n"):
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return 0
