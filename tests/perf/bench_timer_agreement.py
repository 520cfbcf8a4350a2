"""The clock against torch.utils.benchmark and, on a GPU, triton.testing.do_bench, on the same kernels.

Run: pytest tests/perf/bench_timer_agreement.py --benchmark-only -s

Both time the same work in turns, so that drift hits both; the ratio of the medians and the noise floor (the clock
against itself) go to `extra_info`. Nothing timed is asserted.
"""

import os
import statistics
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.timer import interleave
from attnbench.bench.run.workloads.sweep_point import SweepWorkloads, point_of

ROUNDS = 9
KERNELS = ["softmax", "softmax[impl=eager]", "linear"]


def ours(setup: SweepWorkloads, work: Any) -> float:
    """Median seconds by the clock, of a second of rounds."""
    timing = interleave({"it": work}, reference="it", device=setup.device, budget_seconds=1.0, resolution=0.0)
    return statistics.median(timing.samples["it"].seconds)


def compare(benchmark: Any, name: str, setup: SweepWorkloads, work: Any, theirs: Any) -> None:
    work(), theirs()
    pairs = [(ours(setup, work), theirs(), ours(setup, work)) for _ in range(ROUNDS)]
    agreement = [other / statistics.fmean((one, again)) for one, other, again in pairs]
    floor = [again / one for one, _, again in pairs]
    info = {
        "tool over clock, median": round(statistics.median(agreement), 4),
        "tool over clock": [round(r, 4) for r in sorted(agreement)],
        "clock over clock": [round(r, 4) for r in sorted(floor)],
    }
    benchmark.extra_info.update(info)
    print(f"\n{name}: {info}")
    benchmark.pedantic(work, rounds=3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_agrees_with_the_timer_of_torch(benchmark: Any, kernel: str) -> None:
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    setup = point_of("sweep[length=1024,mode=forward]", torch.device("cpu"))
    work = setup.workload(Spec.parse(kernel)).work
    # its default is one thread, whatever the process uses
    timer = Timer("work()", globals={"work": work}, num_threads=threads)
    compare(
        benchmark,
        f"torch.utils.benchmark, {kernel}",
        setup,
        work,
        lambda: timer.blocked_autorange(min_run_time=1).median,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_agrees_with_do_bench_of_triton(benchmark: Any, kernel: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("triton.testing.do_bench needs a GPU")
    from triton.testing import do_bench

    setup = point_of("sweep[length=4096,dtype=bfloat16,mode=forward]", torch.device("cuda"))
    work = setup.workload(Spec.parse(kernel)).work
    compare(
        benchmark, f"triton.testing.do_bench, {kernel}", setup, work, lambda: do_bench(work, return_mode="median") / 1e3
    )
