"""Load of other processes on the processor and the GPU while we measure."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
import torch

from .gpu import Gpu, read_gpu

CORES = 0.25
"""Processor time of others, per second, from which a Record carries a note; an idle desktop stays below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLoad:
    """`cores`: processor time that others used, per second of wall time; None where it was not measured.

    `gpu`, `before`: the GPU when the measurement ended and when it began, None on a CPU. `throttled`: at either.
    """

    cores: float | None = None
    gpu: Gpu | None = None
    before: Gpu | None = None
    throttled: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """A warning for readers of the measurement; empty where all was quiet.

        >>> SystemLoad(cores=0.8).note
        'other processes used 0.80 cores, over the threshold of 0.25'
        """
        parts = []
        if self.cores is not None and self.cores > CORES:
            parts.append(f"other processes used {self.cores:.2f} cores, over the threshold of {CORES}")
        if self.gpu is not None and self.gpu.others:
            parts.append(f"other processes on the GPU: {self.gpu.others}")
        if self.throttled:
            parts.append(f"the GPU was throttled by {', '.join(self.throttled)}")
        return "; ".join(parts)


class LoadMonitor:
    """Measures from its construction until `seen` is called."""

    def __init__(self, device: torch.device):
        self.device = device
        self.first = self._gpu()
        self.started, self.own, self.busy = time.perf_counter(), time.process_time(), _busy_seconds()

    def seen(self) -> SystemLoad:
        last = self._gpu()
        throttled = [reason for gpu in (self.first, last) if gpu for reason in gpu.throttled]
        return SystemLoad(cores=self._cores(), gpu=last, before=self.first, throttled=tuple(dict.fromkeys(throttled)))

    def _cores(self) -> float:
        # the system counts in ticks of 10 ms, so that over a short measurement the difference may fall below zero
        foreign = (_busy_seconds() - self.busy) - (time.process_time() - self.own)
        return max(foreign, 0.0) / max(time.perf_counter() - self.started, 1e-9)

    def _gpu(self) -> Gpu | None:
        if self.device.type != "cuda":
            return None
        return read_gpu(f"GPU-{torch.cuda.get_device_properties(self.device).uuid}")


def _busy_seconds() -> float:
    """Processor time of all processes since the start of the system, with that of a host that steals cores."""
    times = psutil.cpu_times()
    # time of guests is part of the time of users already
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
