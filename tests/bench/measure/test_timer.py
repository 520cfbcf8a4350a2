"""Order, stopping and bookkeeping of interleaved rounds, with a stopwatch that reads what the test scripts."""

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install
from seeds import seed

from attnbench.bench.measure import timer as clock
from attnbench.bench.measure.timer import LEAST_ROUNDS, interleave, smallest_difference
from attnbench.bench.stats.intervals import NoiseSource, minimal_detectable_effect
from attnbench.bench.stats.scoring import log_ratio

CPU = torch.device("cpu")


class Script:
    """Seconds by subject and round; time passes by them and by nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: list[float]):
        self.now, self.calls = 0.0, []
        self.readings = {name: itertools.cycle(values) for name, values in seconds.items()}
        self.subjects = {name: (lambda name=name: self.calls.append(name)) for name in seconds}
        monkeypatch.setattr(clock._HostStopwatch, "measure", self.measure)
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)

    def measure(self, work: object, repeats: int) -> tuple[float, float, float]:
        work()  # type: ignore[operator]
        seconds = next(self.readings[self.calls[-1]])
        self.now += seconds
        return seconds, seconds, seconds


def test_all_are_warmed_up_first_and_every_second_round_is_a_reverse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(monkeypatch, a=[1.0], b=[2.0], c=[3.0])
    interleave(script.subjects, reference="a", device=CPU, budget_seconds=0.0)
    assert "".join(script.calls[:6]) == "aabbcc"
    rounds = ["".join(script.calls[at : at + 3]) for at in range(6, 6 + 3 * LEAST_ROUNDS, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert rounds[1] == rounds[0][::-1] and rounds[3] == rounds[2][::-1]


def test_nobody_keeps_the_same_neighbours() -> None:
    orders = [clock._order(list("abcdef"), 2 * pair) for pair in range(60)]
    after_a = {order[order.index("a") + 1] for order in orders if order[-1] != "a"}
    assert after_a == set("bcdef")


def test_drift_that_hits_all_alike_leaves_the_ratio_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    drift = [1.0 + 0.1 * step for step in range(40)]
    script = Script(monkeypatch, a=drift, b=[2 * d for d in drift])
    timing = interleave(script.subjects, reference="a", device=CPU, budget_seconds=1e9, resolution=0.01)
    assert (timing.stopped, timing.rounds) == ("resolution", 2 * LEAST_ROUNDS)


def test_noise_goes_on_to_the_budget_and_no_sample_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, a=[1.0], b=[1.0, 4.0, 1.0, 0.25, 100.0])
    timing = interleave(script.subjects, reference="a", device=CPU, budget_seconds=500.0)
    assert timing.stopped == "budget"
    assert script.now >= 500.0
    assert timing.samples["b"].seconds.count(100.0) == timing.rounds // 5


def test_smallest_difference_is_that_of_a_t_test_over_ten_batches() -> None:
    ours, reference = [1.1, 1.3, 0.9, 1.2], [1.0, 1.1, 1.0, 0.9]
    logs = np.log(ours) - np.log(reference)
    noise = [NoiseSource(float(logs.std(ddof=1)) / 2, freedom=9)]
    expected = math.expm1(minimal_detectable_effect(noise, 0.95))
    assert smallest_difference(ours, reference) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("noise", [0.02, 0.07])
def test_rounds_suffice_for_the_resolution_asked_for(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    """A difference of 10 % is found in four of five runs where that was asked for; five rounds find it seldom."""
    draw = np.random.default_rng(seed())
    runs, found, found_by_five = 100, 0, 0
    for _ in range(runs):
        samples = np.exp(noise * draw.standard_normal((2, 400)))
        script = Script(monkeypatch, a=list(samples[0]), b=list(1.1 * samples[1]))
        timing = interleave(script.subjects, reference="a", device=CPU, budget_seconds=1e9, resolution=0.1)
        ours, theirs = timing.samples["b"].seconds, timing.samples["a"].seconds
        found += log_ratio(ours, theirs).interval().low > 0
        found_by_five += log_ratio(ours[:5], theirs[:5]).interval().low > 0
    # ten rounds, the fewest before a look, resolve more than was asked for where there is little noise
    assert found >= 0.7 * runs
    assert noise < 0.05 or found_by_five < 0.5 * runs


def test_it_says_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, a=[1.0], b=[1.0])
    told: list[str] = []
    interleave(script.subjects, reference="a", device=CPU, budget_seconds=0.0, before=told.append)
    assert told[:6] == ["a", "a", "b", "b", "a", "b"]
    assert len(told) == 4 + 2 * LEAST_ROUNDS


@pytest.mark.parametrize(("seconds", "repeats"), [(1e-4, 100), (3e-3, 4)])
def test_short_work_on_a_cpu_is_repeated_within_a_sample(
    seconds: float, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [0.0], []

    def work() -> None:
        calls.append(1)
        now[0] += seconds

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    # of samples, the clock is that of the import
    monkeypatch.setattr(clock._HostStopwatch.measure, "__defaults__", (lambda: now[0], lambda: now[0]))
    timing = interleave({"a": work}, reference="a", device=CPU, budget_seconds=0.0)
    assert timing.samples["a"].repeats == repeats
    assert timing.samples["a"].seconds == pytest.approx([seconds] * LEAST_ROUNDS)
    assert len(calls) == 2 + (repeats + 1) * LEAST_ROUNDS


def test_a_clock_that_is_replaced_later_times_no_sample_and_a_sample_without_time_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work() -> None:
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 0.0, process_time=lambda: 0.0))
        sum(range(1000))

    told: list[tuple[str, float, float]] = []
    timing = interleave(
        {"a": work}, reference="a", device=CPU, budget_seconds=0.0, begins=lambda name: told.append((name, 0.0, 0.0)),
        ended=lambda *sample: told.append(sample),
    )  # fmt: skip
    assert all(seconds > 0 for seconds in timing.samples["a"].seconds)
    assert [seconds for _, seconds, _ in told[1::2]] == pytest.approx(
        [seconds * timing.samples["a"].repeats for seconds in timing.samples["a"].seconds]
    )
    assert smallest_difference([1.0, -0.06], [1.0, 1.0]) == math.inf


def test_what_must_be_prepared_is_prepared_before_each_sample_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, a=[1.0])
    script.subjects["a"]()
    done: list[str] = []
    interleave(
        script.subjects, reference="a", device=CPU, budget_seconds=0.0,
        prepare={"a": lambda: done.append("prepared")},
    )  # fmt: skip
    assert len(done) == 2 + LEAST_ROUNDS


def test_the_canary_is_heard_once_a_round_and_tells_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, a=[1.0], bird=[1.0, 1.0, 1.0, 1.5, 1.5, 1.5])
    bird = script.subjects.pop("bird")
    timing = interleave(
        script.subjects, reference="a", device=CPU, budget_seconds=0.0, least_rounds=6, drift_probe=bird
    )  # fmt: skip
    assert timing.drift_probe == (1.0, 1.0, 1.0, 1.5, 1.5, 1.5)
    assert timing.drift == pytest.approx(0.5)


def test_rounds_end_even_where_work_takes_no_time_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, a=[0.001], b=[0.001, 0.01])
    timing = interleave(script.subjects, reference="a", device=CPU, budget_seconds=1e9)
    assert (timing.stopped, timing.rounds) == ("rounds", clock.MOST_ROUNDS)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch, clock=True)
    with Redirected():
        yield fake


def kernels(cuda: FakeCuda, count: int, seconds: float, host_seconds: float) -> clock.Work:
    def work() -> None:
        for _ in range(count):
            cuda.launch(seconds, host_seconds)

    return work


def on_gpu(cuda: FakeCuda, **subjects: clock.Work) -> clock.TimingRun:
    return interleave(
        subjects, reference="short", device=torch.device("cuda", 0), budget_seconds=0.0, drift_probe=subjects["short"]
    )


def test_short_work_of_a_gpu_is_timed_without_its_launching(cuda: FakeCuda) -> None:
    """Four kernels of 5 µs that take 20 µs each to launch: 20 µs of work, not the 85 µs that an idle queue shows."""
    timing = on_gpu(cuda, short=kernels(cuda, 4, 5e-6, 20e-6), long=kernels(cuda, 3, 2e-3, 5e-6))
    short, long = timing.samples["short"], timing.samples["long"]
    assert short.seconds == pytest.approx([20e-6] * LEAST_ROUNDS)
    assert short.launch_seconds == pytest.approx([80e-6] * LEAST_ROUNDS)
    assert long.seconds == pytest.approx([6e-3] * LEAST_ROUNDS)
    assert long.launch_seconds == pytest.approx([15e-6] * LEAST_ROUNDS)
    assert (short.host_bound, long.host_bound) == (0.0, 0.0)
    assert timing.drift_probe == pytest.approx([20e-6] * LEAST_ROUNDS)


def test_work_that_waits_for_the_gpu_is_said_to_time_the_host(cuda: FakeCuda) -> None:
    def waiting() -> None:
        for _ in range(10):
            cuda.launch(1e-6, 50e-6)
            cuda.synchronize()

    timing = on_gpu(cuda, short=kernels(cuda, 4, 5e-6, 20e-6), waiting=waiting)
    assert timing.samples["waiting"].host_bound == 1.0
    # held back no longer than a few of its own launches
    assert cuda.now < 0.1 + 1.0


def test_launches_that_grow_are_held_for_longer_the_next_time(cuda: FakeCuda) -> None:
    calls = []

    def growing() -> None:
        calls.append(0)
        cuda.launch(5e-6, 1e-3 if len(calls) > 2 else 1e-4)

    samples = on_gpu(cuda, short=kernels(cuda, 1, 5e-6, 5e-6), growing=growing).samples["growing"]
    assert samples.seconds[-1] == pytest.approx(5e-6)
    assert samples.host_bound < 1.0
