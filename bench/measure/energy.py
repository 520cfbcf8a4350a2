"""Energy of work, from counters of the hardware that only grow: NVML for a GPU, RAPL for the processor.

They count the whole device: idle power is not subtracted, and other processes on it are counted too.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch

from .timer import Work

LEAST_SECONDS = 2.0
"""Seconds of work between two readings: a GPU's counter moves about ten times a second, so that it is off by 5 %."""

LEAST_BUDGET_SECONDS = 10.0
"""Least measuring time of a preset that leaves time for such a run."""

MOST_UNITS = 1_000_000

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """`joules` of one unit of work, the mean of `units` in `seconds`; `source`: nvml or rapl."""

    joules: float
    units: int
    seconds: float
    source: str


class EnergyCounter(Protocol):
    """A counter of joules. `source`: what it is read from."""

    source: str

    def since(self, before: float) -> float:
        """Joules since it stood at `before`."""

    def read(self) -> float:
        """The reading of the counter; raises OSError where it cannot be read."""


def energy_of(work: Work, seconds: float, device: torch.device) -> Energy | str:
    """Energy of one unit of `work`, which takes about `seconds`; or why it could not be read.

    `work` is repeated until a run is long enough for the counter. A counter that did not move is no answer.
    """
    counter = counter_of(device)
    if isinstance(counter, str):
        return counter
    units = min(max(1, math.ceil(LEAST_SECONDS / seconds)), MOST_UNITS)
    wait = _waiting(device)
    try:
        wait()
        before, started = counter.read(), time.perf_counter()
        for _ in range(units):
            work()
        wait()
        joules, spent = counter.since(before), time.perf_counter() - started
    except OSError as error:
        return f"the counter of {counter.source} could not be read: {error}"
    if not joules > 0:
        return f"the counter of {counter.source} did not move in {spent:.1f} s"
    return Energy(joules=joules / units, units=units, seconds=spent, source=counter.source)


def counter_of(device: torch.device) -> EnergyCounter | str:
    """The counter of `device`, or why it has none that this process may read."""
    if device.type == "cuda":
        return _nvml_counter(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return _rapl_counter()


@dataclass(slots=True)
class NvmlCounter:
    """Total energy of one GPU since its driver was loaded; GPUs from Volta on count it."""

    uuid: str
    source: str = "nvml"

    def read(self) -> float:
        import pynvml

        try:
            pynvml.nvmlInit()
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
                millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from None
        return float(millijoules) / 1000.0

    def since(self, before: float) -> float:
        return self.read() - before


@dataclass(slots=True)
class RaplCounter:
    """The sum over processor packages, by their folders below /sys/class/powercap; each starts again at its range."""

    packages: tuple[Path, ...]
    source: str = "rapl"

    def read(self) -> float:
        # how often each has started again cannot be seen: `since` holds for the first time only
        return sum(self._joules(package, "energy_uj") for package in self.packages)

    def since(self, before: float) -> float:
        joules = self.read() - before
        if joules < 0:
            # one of them has started again; two would need hours between the readings, or their common range
            joules += max(self._joules(package, "max_energy_range_uj") for package in self.packages)
        return joules

    @staticmethod
    def _joules(package: Path, name: str) -> float:
        return int((package / name).read_text(encoding="ascii")) / 1e6


def _nvml_counter(uuid: str) -> EnergyCounter | str:
    if find_spec("pynvml") is None:
        return "NVML is read through pynvml, which is not installed: pip install 'attnbench[nvml]'"
    counter = NvmlCounter(uuid)
    try:
        counter.read()
    except OSError as error:
        return f"NVML has no energy counter here: {error}"
    return counter


def _rapl_counter() -> EnergyCounter | str:
    packages = []
    for folder in sorted(POWERCAP.glob("intel-rapl:*")):
        # parts of a package have folders of their own, and would be counted twice
        with contextlib.suppress(OSError):
            if (folder / "name").read_text(encoding="ascii").startswith("package"):
                packages.append(folder)
    if not packages:
        return f"there are no RAPL counters in {POWERCAP}"
    counter = RaplCounter(tuple(packages))
    try:
        counter.read()
    except PermissionError:
        return f"the RAPL counters in {POWERCAP} may be read by root alone"
    except (OSError, ValueError) as error:
        return f"the RAPL counters in {POWERCAP} cannot be read: {error}"
    return counter


def _waiting(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done all that was launched."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
