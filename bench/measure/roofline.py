"""Roofline: the matrix products and copies that a machine reaches, as a scale for what attention reaches."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..core.decode import Rate, read_json
from ..core.errors import StoreError
from ..core.files import is_trusted, make_private, replacing

SECONDS = 0.5
SIDE = {"cpu": 1024, "cuda": 8192}
COPIED_BYTES = {"cpu": 64 * 2**20, "cuda": 1024 * 2**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The best seen on a machine: square products of one dtype, and a large copy, which reads and writes each byte."""

    flops_per_second: Rate
    bytes_per_second: Rate

    def best(self, other: Peaks) -> Peaks:
        return Peaks(
            flops_per_second=max(self.flops_per_second, other.flops_per_second),
            bytes_per_second=max(self.bytes_per_second, other.bytes_per_second),
        )


def peaks(device: torch.device, dtype: torch.dtype, machine_id: str, cache: Path) -> Peaks:
    """Measured now for a second; the best of that and of earlier times, so that a busy hour does not lower the scale.

    A cache that cannot be read or written, or that others can write in, is done without.
    """
    file = cache / "calibration" / f"{machine_id}-{str(dtype).removeprefix('torch.')}.json"
    # Measured and not looked up: data sheets assume clocks that a shared or throttled machine never reaches.
    found = measure(device, dtype, SECONDS)
    # a scale that somebody else could have put there is none
    if is_trusted(file):
        with contextlib.suppress(OSError, StoreError):
            found = found.best(read_json(Peaks, file, "peaks of a machine"))
    with contextlib.suppress(OSError):
        make_private(file.parent)
        with replacing(file, follow=True) as opened:
            opened.write(json.dumps(asdict(found)).encode())
    return found


def measure(device: torch.device, dtype: torch.dtype, seconds: float) -> Peaks:
    """The fastest of as many products and copies as fit into `seconds` each."""
    side = SIDE[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    # Allocated before, so that only the product is timed.
    out = torch.empty_like(left)
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = _fastest(lambda: torch.mm(left, right, out=out), device, seconds)
    copy = _fastest(lambda: target.copy_(source), device, seconds)
    return Peaks(flops_per_second=2.0 * side**3 / product, bytes_per_second=2.0 * source.numel() / copy)


def _fastest(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    work()
    best, ends = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < ends:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        # The minimum, unlike elsewhere: a peak is asked for, and noise only ever adds time.
        best = min(best, time.perf_counter() - started)
    return best
