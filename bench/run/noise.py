"""The smallest difference that can be measured on this machine, by timing the reference against itself."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from ..core.cell import REFERENCE
from ..core.metrics import Interval
from ..core.spec import Spec
from ..measure.timer import drift_probe, interleave
from ..stats.scoring import log_ratio, ratio
from .workloads.sweep_point import point_of

TASK = "sweep[length=1024,mode=forward]"
NULL = "null control"
WINDOWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """`null`: the reference over itself, over all windows; `windows`: by each sixth of the time.

    `visible`: the smallest share by which two variants must differ to be separated in one window; `spread`:
    (third - first quartile) / median of the raw samples. `drift`: of the drift probe. `note`: load of other processes.
    """

    seconds: float
    rounds: int
    null: Interval
    windows: tuple[Interval, ...]
    visible: float
    spread: float
    drift: float
    note: str

    @property
    def separated(self) -> int:
        """Windows in which identical code looked different: one in twenty does by chance."""
        return sum(not window.low <= 1.0 <= window.high for window in self.windows)


def measure_noise(device: torch.device, seconds: float, task: str = TASK) -> NoiseFloor:
    """Times the reference against itself in six windows of interleaved rounds, `seconds` in all."""
    workloads = point_of(task, device)
    works = {name: workloads.workload(Spec(REFERENCE)).timed for name in (REFERENCE, NULL)}
    ours: list[float] = []
    theirs: list[float] = []
    windows, drifts, notes = [], [], []
    for _ in range(WINDOWS):
        timing = interleave(
            works, reference=REFERENCE, device=device, budget_seconds=seconds / WINDOWS, resolution=0.0,
            drift_probe=drift_probe(device),
        )  # fmt: skip
        null, reference = (timing.samples[name].seconds for name in (NULL, REFERENCE))
        ours += null
        theirs += reference
        windows.append(ratio(log_ratio(null, reference)))
        drifts.append(timing.drift)
        notes.append(timing.system_load.note)
    lower, middle, upper = statistics.quantiles(theirs, n=4)
    # the interval of a difference must leave the noise floor behind: its half-width and the gap of the null control
    widths = [max(window.high - 1, 1 - window.low) for window in windows]
    return NoiseFloor(
        seconds=seconds,
        rounds=len(ours),
        null=ratio(log_ratio(ours, theirs)),
        windows=tuple(windows),
        visible=statistics.median(widths) + statistics.median(w.high / w.value - 1 for w in windows),
        spread=(upper - lower) / middle,
        drift=max(drifts, key=abs),
        note=max(notes, key=len),
    )
