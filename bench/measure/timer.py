"""The time of several pieces of work, measured in interleaved rounds.

Rounds come in pairs, one in a drawn order and one in its reverse. Sampling goes on until a difference of a stated size
to the reference would be found, or the budget ends. No sample is deleted.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from .cuda_graph import capture
from .system_load import LoadMonitor, SystemLoad

Work = Callable[[], object]
Clock = Callable[[], float]

LEAST_ROUNDS = 5
MOST_ROUNDS = 1000
FLUSH_BYTES = 256 * 2**20

LEAST_SECONDS = 1e-2
"""Shorter work on a CPU is repeated within a sample: a timer tick or an interrupt would be a large part of it."""

COLD_SECONDS = 5e-2
"""A sample of shorter work on a CPU begins with a unit that is not timed, since the caches hold another's data."""

LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS = 5e-5, 5e-2
"""Extra wait of the device before a sample, beyond twice the time to launch. Long work fills its queue by itself."""

MOST_WAITS = 8
"""The most by which that wait is multiplied after samples that found the queue empty."""

DETECTABLE = 3.15
"""Standard errors of the smallest difference that a 95 % interval finds in 80 % of runs: 2.26 + 0.88.

Student's t with 9 degrees of freedom, since boards average the rounds into ten batches. Not scipy's: workers start
without it.
"""

LOOK = 1.25
"""Growth of the rounds between two looks at the intervals: looking after every round would stop at a lucky one."""


@dataclass(slots=True, kw_only=True)
class Samples:
    """Samples of one piece of work, one a round, in the order of the rounds, each of one unit of work.

    `cpu_seconds` counts all threads. `launch_seconds`: how long the host was busy starting the work of a GPU, which is
    no part of `seconds`. `ran_dry`: whether the GPU had begun before all was launched. `repeats`: units that one sample
    is the mean of. `begins_cold`: whether no unit that is not timed comes before them.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    launch_seconds: list[float] = field(default_factory=list)
    ran_dry: list[bool] = field(default_factory=list)
    repeats: int = 1
    begins_cold: bool = True

    @property
    def host_bound(self) -> float:
        """Share of samples that time the host: the GPU waited for it, and launching took as long as the whole work."""
        all_ = list(zip(self.ran_dry, self.launch_seconds, self.seconds, strict=False))
        return sum(dry and launch >= 0.9 * whole for dry, launch, whole in all_) / len(all_) if all_ else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRun:
    """Result of interleaved rounds. `drift_probe`: seconds of a fixed piece of work, once a round."""

    samples: dict[str, Samples]
    rounds: int
    stopped: str
    system_load: SystemLoad
    drift_probe: tuple[float, ...] = ()

    @property
    def drift(self) -> float:
        """The slow-down of the drift probe from the first third of the rounds to the last, as a share, or 0."""
        third = len(self.drift_probe) // 3
        if not third:
            return 0.0
        first, last = sorted(self.drift_probe[:third]), sorted(self.drift_probe[-third:])
        # Medians, since a single interrupt may multiply one sample by ten.
        return last[third // 2] / first[third // 2] - 1.0


def interleave(
    subjects: Mapping[str, Work],
    *,
    reference: str,
    device: torch.device,
    budget_seconds: float,
    resolution: float = 0.03,
    least_rounds: int = LEAST_ROUNDS,
    before: Callable[[str], None] = lambda name: None,
    prepare: Mapping[str, Work] | None = None,
    drift_probe: Work | None = None,
    begins: Callable[[str], None] = lambda name: None,
    ended: Callable[[str, float, float], None] = lambda name, seconds, cpu_seconds: None,
) -> TimingRun:
    """Times all work once a round until a difference of `resolution` would be found, or the budget ends.

    `resolution`: a share, 0.03 for 3 % slower or faster than the reference; 0 takes the whole budget. Found means: by a
    95 % interval in 80 % of such runs. All are warmed up before any is timed; `before` is called with the name whose
    turn it is. `prepare`: runs before each sample of a name, untimed. At least `least_rounds` rounds are made, whatever
    the budget. `begins`, `ended`: called round each sample, `ended` with the seconds of the whole sample.
    """
    prepare = prepare or {}
    clock = stopwatch(device)
    samples = {name: Samples() for name in subjects}

    def ready(name: str) -> Work:
        before(name)
        prepare.get(name, _nothing)()
        return subjects[name]

    # Twice, and the shorter counts: the first call may compile, allocate or read from disk. How long one unit takes
    # decides how many make up a sample.
    for name in subjects:
        seconds = min(clock.warm_up(ready(name)) for _ in range(2))
        if device.type == "cpu" and name not in prepare and 0 < seconds < COLD_SECONDS:
            samples[name].repeats = math.ceil(LEAST_SECONDS / seconds)
            samples[name].begins_cold = False
    probe_seconds = []
    if drift_probe is not None:
        for _ in range(2):
            clock.warm_up(drift_probe)
    # Only now: the warm-up of others is no load on the samples.
    others = LoadMonitor(device)
    started, rounds, look, stopped = time.perf_counter(), 0, 2 * LEAST_ROUNDS, "budget"
    while rounds < least_rounds or time.perf_counter() - started < budget_seconds:
        if drift_probe is not None:
            probe_seconds.append(clock.measure(drift_probe, 1)[0])
        # Interleaved, since clocks, temperature and neighbours drift over minutes: timed one after the other, the last
        # would be compared under other conditions than the first.
        for name in _order(list(subjects), rounds):
            mine, work = samples[name], ready(name)
            # A GPU flushes its cache instead, see `_CudaStopwatch`.
            if not mine.begins_cold:
                work()
            begins(name)
            seconds, cpu_seconds, launch_seconds = clock.measure(work, mine.repeats)
            ended(name, seconds * mine.repeats, cpu_seconds * mine.repeats)
            mine.seconds.append(seconds)
            mine.cpu_seconds.append(cpu_seconds)
            if device.type == "cuda":
                mine.launch_seconds.append(launch_seconds)
                mine.ran_dry.append(clock.ran_dry)
        rounds += 1
        # Optional stopping makes intervals too narrow when they are looked at often, so looks grow apart.
        if rounds >= look:
            look = math.ceil(LOOK * rounds)
            if all(smallest_difference(s.seconds, samples[reference].seconds) < resolution for s in samples.values()):
                stopped = "resolution"
                break
        if rounds >= MOST_ROUNDS:
            stopped = "rounds"
            break
    return TimingRun(
        samples=samples, rounds=rounds, stopped=stopped, system_load=others.seen(), drift_probe=tuple(probe_seconds)
    )


def _order(names: list[str], round_: int) -> list[str]:
    """The order of a round; every second one is the reverse of the one before.

    >>> _order(["a", "b", "c"], 1) == _order(["a", "b", "c"], 0)[::-1]
    True
    """
    # Reverses cancel a linear drift within a pair of rounds. New orders give everyone other neighbours, whose caches
    # and freed memory a sample inherits.
    random.Random(round_ // 2).shuffle(names)
    return names if round_ % 2 == 0 else names[::-1]


def smallest_difference(ours: list[float], reference: list[float]) -> float:
    """The smallest difference, as a share of the reference, that samples as noisy and as many as these would find."""
    if min(*ours, *reference) <= 0:
        # a clock went back; whose doing that is, the parent of this process finds out
        return math.inf
    # Paired by round: what hits a whole round cancels in the ratio. Logarithms make faster and slower symmetric.
    logs = [math.log(a / b) for a, b in zip(ours, reference, strict=True)]
    mean = sum(logs) / len(logs)
    variance = sum((x - mean) ** 2 for x in logs) / max(len(logs) - 1, 1)
    return math.expm1(DETECTABLE * math.sqrt(variance / len(logs)))


def drift_probe(device: torch.device) -> Work:
    """A fixed piece of work, scaled dot-product attention at 512 tokens: if its time moves, the machine changed."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 4, 512, 64, generator=draw).to(device) for _ in range(3))

    def work() -> object:
        with torch.no_grad():
            return F.scaled_dot_product_attention(query, key, value)

    return work


def captured(work: Work, device: torch.device) -> Work:
    """`work` as a CUDA graph, so that a sample holds no launching; raises RuntimeError where it cannot be captured."""
    # Capture needs a side stream and warmed-up libraries: what cuBLAS allocates at its first call cannot be captured.
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    return capture(work, device).replay


def stopwatch(device: torch.device) -> _HostStopwatch | _CudaStopwatch:
    """The sampler of work on that device."""
    return _CudaStopwatch(device) if device.type == "cuda" else _HostStopwatch()


def _nothing() -> None:
    """Needs no preparation."""


class _HostStopwatch:
    ran_dry = False

    def warm_up(self, work: Work) -> float:
        """Wall seconds of one unit of work that is not a sample."""
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def measure(
        self, work: Work, repeats: int, wall_clock: Clock = time.perf_counter, cpu_clock: Clock = time.process_time
    ) -> tuple[float, float, float]:
        """Wall, processor and launch seconds of one unit of work.

        The clocks are those of the import of this file, before that of foreign code, whatever `time` names later.
        """
        cpu, wall = cpu_clock(), wall_clock()
        for _ in range(repeats):
            work()
        seconds = (wall_clock() - wall) / repeats
        return seconds, (cpu_clock() - cpu) / repeats, seconds


class _CudaStopwatch:
    """Events round the work, behind a wait on the device that is longer than its launching; the L2 cache is flushed.

    A GPU that has nothing to do waits for each launch, and short work would be timed by the host. Behind the wait all
    of the work is queued before the GPU begins it. `ran_dry`: whether that failed at the last sample, since launching
    took longer than the wait, or the work itself waits for the GPU.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.ran_dry = False
        # Larger than the L2 cache of any GPU so far, so that writing it pushes out what the sample before left there.
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
        self.launches: dict[Work, float] = {}
        self.waits: dict[Work, float] = {}
        self.cycles_per_second = self._clock()

    def warm_up(self, work: Work) -> float:
        """Seconds that the host takes to launch work that is no sample; the shortest sets the wait of its samples."""
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        torch.cuda.synchronize(self.device)
        # the first launch may compile, or load a library
        self.launches[work] = min(seconds, self.launches.get(work, seconds))
        self.waits[work] = self._wait(work)
        return seconds

    def measure(self, work: Work, repeats: int) -> tuple[float, float, float]:
        begin, end = self._event(), self._event()
        wait = self.waits[work]
        self.flush.zero_()
        torch.cuda._sleep(int(wait * self.cycles_per_second))  # type: ignore[no-untyped-call]
        cpu, host = time.process_time(), time.perf_counter()
        # Events are stamped by the GPU itself; the host's clock would add the time to launch and to synchronise.
        begin.record()
        work()
        end.record()
        launched = time.perf_counter() - host
        self.ran_dry = begin.query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        if self.ran_dry:
            # longer the next time, but not for ever: work that waits for the GPU always finds the queue dry
            self.waits[work] = min(2 * wait, MOST_WAITS * self._wait(work))
        return begin.elapsed_time(end) / 1000.0, time.process_time() - cpu, launched

    def _wait(self, work: Work) -> float:
        return min(2 * self.launches[work] + LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS)

    def _clock(self) -> float:
        """Cycles of `torch.cuda._sleep` in a second."""
        cycles, begin, end = 10**6, self._event(), self._event()
        # twice: the first one loads the kernel
        for _ in range(2):
            begin.record()
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            end.record()
            torch.cuda.synchronize(self.device)
        milliseconds: float = begin.elapsed_time(end)
        return 1000.0 * cycles / max(milliseconds, 1e-3)

    @staticmethod
    def _event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
