"""A/A and planted differences: how often the clock finds what is there, and what is not. On a quiet machine:

    python tools/null_control.py                  # 20 runs of each, at most 20 s a run: a quarter of an hour
    python tools/null_control.py --runs 3 --seconds 2

Null: the same variant under two names; the 95 % interval of the ratio should contain 1 in at least 17 of 20 runs, and
its median half-width be at most 3 % at 1,024 tokens. Planted: a wrapper that does 10 % more work, which is the same
attention of 11 heads instead of 10; an interval above 1 should be found in at least 17 of 20 runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

import torch

from attnbench.bench.core.metrics import Interval
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.timer import drift_probe, interleave
from attnbench.bench.run.workloads.sweep_point import SweepWorkloads, point_of
from attnbench.bench.stats.scoring import log_ratio, ratio

CPU = torch.device("cpu")


def measured(setup: SweepWorkloads, other: SweepWorkloads, seconds: float) -> tuple[Interval, dict[str, object]]:
    """Ratio of softmax on the inputs of `other` to softmax on those of `setup`, with how it was got."""
    works = {"softmax": setup.workload(Spec("softmax")).work, "other": other.workload(Spec("softmax")).work}
    timing = interleave(
        works, reference="softmax", device=CPU, budget_seconds=seconds, resolution=0.015, drift_probe=drift_probe(CPU)
    )  # fmt: skip
    found = ratio(log_ratio(timing.samples["other"].seconds, timing.samples["softmax"].seconds))
    return found, {"rounds": timing.rounds, "stopped": timing.stopped, "drift": round(timing.drift, 3),
                   "foreign": timing.system_load.note}  # fmt: skip


def softmax_of(length: int, heads: int) -> SweepWorkloads:
    return point_of(f"sweep[length={length},heads={heads},mode=forward]", CPU)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--length", type=int, default=1024)
    asked = options.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    few, ten, eleven = (softmax_of(asked.length, heads) for heads in (4, 10, 11))
    results: dict[str, list[Interval]] = {"null": [], "planted": []}
    for run in range(asked.runs):
        for name in results:
            setup, other = (few, few) if name == "null" else (ten, eleven)
            found, how = measured(setup, other, asked.seconds)
            results[name].append(found)
            print(json.dumps({"run": run, "kind": name, "ratio": round(found.value, 4), "low": round(found.low, 4),
                              "high": round(found.high, 4), **how}), flush=True)  # fmt: skip
    null, planted = results["null"], results["planted"]
    widths = [(interval.high / interval.low) ** 0.5 - 1 for interval in null]
    print(f"null: the interval contains 1 in {sum(i.low <= 1 <= i.high for i in null)} of {len(null)} runs; "
          f"median half-width {100 * statistics.median(widths):.2f} %")  # fmt: skip
    print(f"planted 10 %: found in {sum(i.low > 1 for i in planted)} of {len(planted)} runs; "
          f"median ratio {statistics.median(i.value for i in planted):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
