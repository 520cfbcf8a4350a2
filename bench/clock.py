"""Clock: the time of several subjects, measured interleaved so that drift hits all alike.

Rounds run in alternating order (A B C, C B A, …). Sampling goes on until the interval of every subject's log-ratio to
the reference is narrow, or the budget ends. No sample is deleted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

Work = Callable[[], object]

LEAST_ROUNDS = 5
FLUSH_BYTES = 256 * 2**20


@dataclass(slots=True, kw_only=True)
class Samples:
    """Samples of one subject, one a round, in the order of the rounds. `cpu_seconds` counts all threads."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a block of interleaved rounds gave; `foreign_cores`: processor time that others used, per second of ours."""

    samples: dict[str, Samples]
    rounds: int
    stopped: str
    foreign_cores: float | None


def interleave(
    subjects: dict[str, Work],
    *,
    reference: str,
    device: torch.device,
    budget_seconds: float,
    half_width: float = 0.02,
    before: Callable[[str], None] = lambda name: None,
) -> Timing:
    """Times every subject once a round until every ratio's 95 % half-width is below `half_width`, or the budget ends.

    All are warmed up before any is timed; `before` is told whose turn it is. At least `LEAST_ROUNDS`
    rounds are made, whatever the budget.
    """
    stopwatch = _CudaStopwatch(device) if device.type == "cuda" else _HostStopwatch()
    for name, work in subjects.items():
        before(name)
        for _ in range(2):
            work()
    samples = {name: Samples() for name in subjects}
    others = _ForeignLoad()
    started, rounds, stopped = time.perf_counter(), 0, "budget"
    while rounds < LEAST_ROUNDS or time.perf_counter() - started < budget_seconds:
        order = list(subjects) if rounds % 2 == 0 else list(reversed(subjects))
        for name in order:
            before(name)
            seconds, cpu_seconds = stopwatch.measure(subjects[name])
            samples[name].seconds.append(seconds)
            samples[name].cpu_seconds.append(cpu_seconds)
        rounds += 1
        widest = max(
            (ratio_half_width(s.seconds, samples[reference].seconds) for n, s in samples.items() if n != reference),
            default=0.0,
        )
        if rounds >= 2 * LEAST_ROUNDS and widest < half_width:
            stopped = "narrow"
            break
    return Timing(samples=samples, rounds=rounds, stopped=stopped, foreign_cores=others.cores())


def ratio_half_width(ours: list[float], reference: list[float]) -> float:
    """Half-width of the 95 % interval of the mean log-ratio, by the normal approximation: to stop by, not to report."""
    logs = [math.log(a / b) for a, b in zip(ours, reference, strict=True)]
    mean = sum(logs) / len(logs)
    variance = sum((x - mean) ** 2 for x in logs) / max(len(logs) - 1, 1)
    return 1.96 * math.sqrt(variance / len(logs))


class _HostStopwatch:
    def measure(self, work: Work) -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        return time.perf_counter() - wall, time.process_time() - cpu


class _CudaStopwatch:
    """Events round the work; the L2 cache is flushed first, so that no subject finds its inputs warm."""

    def __init__(self, device: torch.device):
        self.device = device
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)

    def measure(self, work: Work) -> tuple[float, float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.flush.zero_()
        torch.cuda.synchronize(self.device)
        cpu = time.process_time()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) / 1000.0, time.process_time() - cpu


class _ForeignLoad:
    """Processor time used by other processes since it was made; None where the system does not tell."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.busy, self.own = _busy_seconds(), time.process_time()

    def cores(self) -> float | None:
        busy = _busy_seconds()
        if busy is None or self.busy is None:
            return None
        foreign = (busy - self.busy) - (time.process_time() - self.own)
        return max(foreign, 0.0) / max(time.perf_counter() - self.started, 1e-9)


def _busy_seconds() -> float | None:
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            fields = [int(ticks) for ticks in file.readline().split()[1:]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, soft_irq, steal = (fields + [0] * 8)[:8]
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
