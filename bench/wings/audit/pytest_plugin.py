"""The fixtures `attention_benchmark`, which times points of sweeps through pytest-benchmark, and `audit`.

    def test_linear(attention_benchmark):
        attention_benchmark("linear", "sweep[length=1024,mode=forward]")

    def test_mine(audit):
        audit(MyAttention(64, heads=4), causal=True)

Loaded by pytest as a plugin; torch and the harness are imported when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Result of one call of the fixture, also in the benchmark's `extra_info`.

    `ratio`: time over the reference's in interleaved rounds, with the ends of its 95 % interval. `sparsity` and
    `block_sparsity` (64 × 64) are those of the weights on these inputs, None where there are none.
    """

    ratio: float
    ratio_low: float
    ratio_high: float
    peak_bytes: int
    sparsity: float | None
    block_sparsity: float | None
    implementation: str
    foreign_load: str


@pytest.fixture
def attention_benchmark(benchmark: Any) -> Callable[..., Timed]:
    """Times a variant at one point of a sweep through pytest-benchmark; raises Incorrect where the gate is red."""

    def run(variant: str, task: str = "sweep", *, device: str | None = None, budget_seconds: float = 2.0) -> Timed:
        return timed(benchmark, variant, task, device, budget_seconds)

    return run


@pytest.fixture
def audit() -> Callable[..., Any]:
    """Audits a live module or function, as `attnbench.audit`, and fails the test with all that the audit found."""

    def run(target: Any, **options: Any) -> Any:
        from .report import in_words
        from .suite import audit_module

        report = audit_module(target, type(target).__name__, **options)
        if not report:
            pytest.fail(report.question or "\n".join(map(in_words, report.failures)), pytrace=False)
        return report

    return run


def timed(benchmark: Any, variant: str, task: str, device: str | None, budget_seconds: float) -> Timed:
    """`budget_seconds`: what the rounds beside the reference may take, after pytest-benchmark's own."""
    import torch

    from ...core.cell import REFERENCE
    from ...core.spec import Spec
    from ...measure.machine import choose_device
    from ...measure.timer import interleave
    from ...run.context import implementation_of
    from ...run.lanes.timing_record import memory
    from ...run.workloads.sweep_point import point_of
    from ...stats.scoring import log_ratio, ratio

    place = choose_device(device)
    workloads = point_of(task, place)
    ours, reference = workloads.workload(Spec.parse(variant)), workloads.workload(Spec(REFERENCE))
    # Warmed up before pytest-benchmark calibrates how often to call it.
    ours.once()

    def work() -> None:
        ours.timed()
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    if ours.prepare is None:
        benchmark(work)
    else:
        benchmark.pedantic(work, setup=ours.prepare, rounds=20)
    both = {"ours": ours, REFERENCE: reference}
    timing = interleave(
        {name: workload.timed for name, workload in both.items()},
        reference=REFERENCE,
        device=place,
        budget_seconds=budget_seconds,
        prepare={name: workload.prepare for name, workload in both.items() if workload.prepare is not None},
    )
    found = ratio(log_ratio(timing.samples["ours"].seconds, timing.samples[REFERENCE].seconds))
    weights = {(m.name, m.where.get("block")): m.value for m in ours.attention() if "head" not in m.where}
    peak = next(m for m in memory(workloads, ours) if m.name == "peak_bytes")
    result = Timed(
        ratio=found.value,
        ratio_low=found.low,
        ratio_high=found.high,
        peak_bytes=int(peak.value),
        sparsity=weights.get(("sparsity", None)),
        block_sparsity=weights.get(("block_sparsity", BLOCK)),
        implementation=implementation_of(ours.variants),
        foreign_load=timing.system_load.note,
    )
    benchmark.extra_info.update({name: getattr(result, name) for name in Timed.__slots__} | {"task": task})
    return result
