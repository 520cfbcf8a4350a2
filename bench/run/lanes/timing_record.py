"""The measurements of a timed workload, from its samples, its memory and its counted FLOPs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ...core.cell import REFERENCE
from ...core.record import Measurement
from ...measure.energy import LEAST_BUDGET_SECONDS, energy_of
from ...measure.flops import VISIBLE, dense_flops
from ...measure.memory import held_bytes, peak_bytes, reserved_bytes, storages
from ...measure.roofline import Peaks, peaks
from ...measure.system_load import CORES
from ...measure.timer import TimingRun
from ..context import WorkerContext, decode_state, own_projections
from ..workloads.workload import Workload, Workloads

NULL = "null control"


def peaks_of(workloads: Workloads, context: WorkerContext) -> Peaks:
    """Peaks that this machine reaches in the dtype of the job."""
    return peaks(workloads.device, workloads.dtype, context.machine.speed_id, context.place.cache)


def costs(
    workloads: Workloads, workload: Workload, name: str, timing: TimingRun, limits: Peaks | None
) -> Iterator[Measurement]:
    """Times of one unit with their raw samples, those of the reference and the null control, rates, and work done."""
    mine, units = timing.samples[name], workloads.units
    # The median: a mean follows the few samples that an interrupt made long. Ratios are computed later, from the raw
    # samples, by round.
    median = statistics.median(mine.seconds) / units
    yield Measurement.of(
        f"{workloads.mode}_seconds", median, _each(mine.seconds, units), rounds=timing.rounds, stopped=timing.stopped,
        repeats=mine.repeats * units,
    )  # fmt: skip
    yield Measurement.of("cpu_seconds", statistics.median(mine.cpu_seconds) / units, _each(mine.cpu_seconds, units))
    if mine.launch_seconds:
        launching = _each(mine.launch_seconds, units)
        yield Measurement.of("launch_seconds", statistics.median(launching), launching)
    for label, other in (("reference", REFERENCE), ("null", NULL)):
        if other in timing.samples:
            seconds = _each(timing.samples[other].seconds, units)
            yield Measurement.of(f"{label}_{workloads.mode}_seconds", statistics.median(seconds), seconds)
    yield from _surroundings(timing, name)
    yield Measurement.of("examples_per_second", workloads.sequences / median)
    yield Measurement.of("tokens_per_second", workloads.real / median)
    yield Measurement.of("padded_tokens_per_second", workloads.padded / median)
    density = statistics.fmean(variant.density(variant.shape) for variant in workload.variants)
    yield Measurement.of("declared_density", density)
    if workloads.mode != "decode":
        yield from decode_state(workload.variants, workloads.recipe.length)
    if workload.compilation is not None:
        yield Measurement.of(
            "compile_seconds", workload.compilation.seconds, graphs=workload.compilation.graphs, graph_breaks=0
        )
    whole, extra = workload.parameters
    yield Measurement.of("parameters", whole)
    yield Measurement.of("extra_parameters", extra)
    yield from own_projections(workload.variants)
    yield from _work(workloads, workload, density, median, limits)


def _surroundings(timing: TimingRun, name: str) -> Iterator[Measurement]:
    """Load, drift and clocks of the machine during the samples."""
    if timing.system_load.cores is not None:
        note: dict[str, Any] = {"note": timing.system_load.note} if timing.system_load.note else {}
        yield Measurement.of("foreign_load", timing.system_load.cores, threshold=CORES, **note)
    if timing.drift_probe:
        # Raw samples once a job are enough; all Records of it share them.
        raw = timing.drift_probe if name == REFERENCE else ()
        yield Measurement.of("canary_seconds", statistics.median(timing.drift_probe), raw, drift=round(timing.drift, 4))
    if timing.samples[name].launch_seconds:
        yield Measurement.of("host_bound", timing.samples[name].host_bound)
    gpu = timing.system_load.gpu
    if gpu is not None:
        more: dict[str, Any] = {}
        if timing.system_load.throttled:
            more["throttled"] = ", ".join(timing.system_load.throttled)
        if (before := timing.system_load.before) is not None:
            more |= {"before_mhz": before.clock_mhz, "before_watts": before.watts}
        yield Measurement.of("gpu_clock", gpu.clock_mhz, memory_mhz=gpu.memory_clock_mhz, watts=gpu.watts, **more)
        yield Measurement.of("gpu_temperature", gpu.celsius)


def _work(
    workloads: Workloads, workload: Workload, density: float, seconds: float, limits: Peaks | None
) -> Iterator[Measurement]:
    """FLOPs by counting; where a kernel hides its products, those that its density declares are added."""
    shapes = [variant.shape for variant in workload.variants]
    sequences = workloads.sequences
    dense = dense_flops(shapes, sequences, workloads.mode)
    yield Measurement.of("dense_flops", dense)
    # the operators of a graph cannot be counted: those of its eager form stand in for them
    ran = workload.counted_as if workload.compilation else workload.implementation
    hidden = set(ran.split("+")) - set(VISIBLE)
    flops = workload.flops
    if hidden:
        # alone, what is seen of attention is part of what is declared; in a model, what is seen are the projections
        flops = max(flops, dense * density) if workloads.bare else flops + dense * density
    if workload.uncounted:
        return
    yield Measurement.of("flops", flops, how="declared" if hidden else "counted")
    if limits is not None:
        yield Measurement.of("peak_share", flops / seconds / limits.flops_per_second,
                             peak_flops_per_second=limits.flops_per_second)  # fmt: skip
    if workload.compilation is not None:
        # what a fused graph reads and writes is not what its operators would
        return
    yield Measurement.of("traffic_bytes", workload.traffic_bytes)
    if workload.traffic_bytes:
        yield Measurement.of("arithmetic_intensity", flops / workload.traffic_bytes)
    if limits is not None:
        yield Measurement.of("copy_share", workload.traffic_bytes / seconds / limits.bytes_per_second,
                             copy_bytes_per_second=limits.bytes_per_second)  # fmt: skip


def energy(workloads: Workloads, workload: Workload, name: str, timing: TimingRun) -> Measurement | str:
    """Energy of one unit, after the rounds; or why it was not measured."""
    if workload.prepare is not None:
        return "decoding takes its state back before each sample, whose energy would be counted too"
    budget = workloads.recipe.timing_seconds
    if budget < LEAST_BUDGET_SECONDS:
        return f"timing_seconds of {budget:g} leaves no time for it: from {LEAST_BUDGET_SECONDS:g} on"
    found = energy_of(workload.timed, statistics.median(timing.samples[name].seconds), workloads.device)
    if isinstance(found, str):
        return found
    units = found.units * workloads.units
    return Measurement.of(
        "energy_joules", found.joules / workloads.units, source=found.source, units=units,
        seconds=round(found.seconds, 3),
    )  # fmt: skip


def memory(workloads: Workloads, workload: Workload) -> Iterator[Measurement]:
    """Peak of one more sample, with all that stays between samples: parameters, optimiser state, inputs."""
    held = held_bytes(*workload.owners) + sum(x.untyped_storage().nbytes() for x in workload.inputs)
    if workload.prepare is not None:
        workload.prepare()
    held += sum(storages(workload.state).values())
    peak = peak_bytes(workload.whole, workloads.device)
    yield Measurement.of("peak_bytes", held + peak, held=held)
    if workloads.device.type == "cuda":
        if workload.prepare is not None:
            workload.prepare()
        yield Measurement.of("reserved_bytes", held + reserved_bytes(workload.whole, workloads.device), held=held)


def _each(samples: list[float], units: int) -> tuple[float, ...]:
    return tuple(seconds / units for seconds in samples) if units > 1 else tuple(samples)
