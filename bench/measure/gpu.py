"""Clocks, temperature, throttling and processes of a GPU, from NVML where pynvml is installed, else from nvidia-smi."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec

QUERY = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")

REASONS = {
    0x2: "set clocks",
    0x4: "power cap",
    0x8: "slowdown by hardware",
    0x20: "temperature",
    0x40: "temperature, by hardware",
    0x80: "power brake",
}
"""Bits of `nvmlClocksEventReasons` that mean slower than it could be; an idle GPU is not throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One reading. `others`: processes on it beside this one."""

    clock_mhz: float
    memory_clock_mhz: float
    celsius: float
    watts: float
    throttled: tuple[str, ...]
    others: int


def read_gpu(uuid: str) -> Gpu | None:
    """The GPU of that UUID (`GPU-…`) as it stands; None where neither way to ask works."""
    if find_spec("pynvml") is not None:
        found = _by_pynvml(uuid)
        if found is not None:
            return found
    return _by_nvidia_smi(uuid)


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """
    >>> throttle_reasons(0x24)
    ('power cap', 'temperature')
    """
    return tuple(words for bit, words in REASONS.items() if bits & bit)


def others_among(processes: list[int]) -> int:
    """Processes beside this one, which is on the GPU itself; a container may list it under another number.

    >>> others_among([11, 12]), others_among([900]), others_among([])
    (1, 0, 0)
    """
    return max(len(set(processes)) - 1, 0)


def parse_query(text: str, processes: str) -> Gpu | None:
    """Answers of `nvidia-smi --format=csv,noheader,nounits` to QUERY, and its process numbers; None for less."""
    cells = [cell.strip() for cell in text.strip().split(",")]
    try:
        # Some GPUs answer `[N/A]` for the power they draw.
        clock, memory, celsius, watts = (float(cell) if cell[:1].isdigit() else float("nan") for cell in cells[:4])
        bits = int(cells[4], 16)
    except (ValueError, IndexError):
        return None
    numbers = [int(line) for line in processes.split("\n") if line.strip().isdigit()]
    return Gpu(clock_mhz=clock, memory_clock_mhz=memory, celsius=celsius, watts=watts,
               throttled=throttle_reasons(bits), others=others_among(numbers))  # fmt: skip


def _by_pynvml(uuid: str) -> Gpu | None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            return Gpu(
                clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                memory_clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
                celsius=float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
                watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
                throttled=throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
                others=others_among(processes),
            )
        finally:
            pynvml.nvmlShutdown()
    return None


def _by_nvidia_smi(uuid: str) -> Gpu | None:
    command = ["nvidia-smi", f"--id={uuid}", "--format=csv,noheader,nounits"]
    try:
        asked, listed = (
            subprocess.run([*command, what], capture_output=True, text=True, timeout=10, check=True).stdout
            for what in (f"--query-gpu={','.join(QUERY)}", "--query-compute-apps=pid")
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_query(asked, listed)
