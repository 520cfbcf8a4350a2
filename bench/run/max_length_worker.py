"""Worker of the longest-length search: a child process that tries lengths until one kills it.

`python -m attnbench.bench.run.max_length_worker`, JSON on its input.

The first line is an Errand, every other a length; each answer is a line with the peak in bytes, or why there is none.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...tasks.contract import DataPlace
from ...tasks.data.data import place
from ...tasks.sweep_point import Point, TimedTask
from ..core.errors import AttnbenchError
from ..core.registry import TASKS
from ..core.spec import Spec
from ..gate.build import build_unchecked
from ..measure.memory import at_most
from .context import is_out_of_memory
from .lanes.timing_record import memory
from .workloads.sweep_point import SweepWorkloads

SLACK_BYTES = 2**30
"""Address space beside the tensors, for threads and the profiler; what fits is decided by the bytes allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLengthJob:
    """What is tried: a variant at one point of a sweep but for its length, within `memory_bytes`."""

    variant: str
    task: str
    preset: str
    device: str
    threads: int
    memory_bytes: int

    def at(self, length: int) -> tuple[TimedTask, Point]:
        """The point of that length."""
        asked = Spec.parse(self.task)
        kept = {name: value for name, value in asked.parameters if name != "memory_bytes"}
        task: TimedTask = TASKS.build(Spec.of(asked.name, **kept | {"length": length}))
        point = task.recipe(Spec.parse(self.preset))
        assert isinstance(point, Point)
        return task, point


def main() -> int:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    errand = MaxLengthJob(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(errand.threads)
    here = place(offline=True)
    for line in sys.stdin:
        channel.write(json.dumps(answer(errand, int(line), here)) + "\n")
        channel.flush()
    return 0


def answer(errand: MaxLengthJob, length: int, here: DataPlace) -> dict[str, Any]:
    """`peak`: bytes that a length takes; `memory`: True where it was refused them; `error`: why it cannot be tried."""
    device = torch.device(errand.device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, errand.memory_bytes / total), device)
    limited = at_most(errand.memory_bytes + SLACK_BYTES) if device.type == "cpu" else nullcontext()
    try:
        with limited:
            return {"peak": peak(errand, length, here, device)}
    except Exception as error:
        if is_out_of_memory(error):
            return {"memory": True}
        if isinstance(error, AttnbenchError):
            return {"error": str(error)}
        return {"error": f"{type(error).__name__}: {error}"}


def peak(errand: MaxLengthJob, length: int, here: DataPlace, device: torch.device) -> float:
    """Bytes at the peak of one unit of work, with all that is held."""
    task, point = errand.at(length)
    dataset = task.load(here, point, 0, "validation")
    setup = SweepWorkloads.of(task, point, dataset, device, build_unchecked)
    measured = next(m for m in memory(setup, setup.subject(Spec.parse(errand.variant))) if m.name == "peak_bytes")
    return measured.value


if __name__ == "__main__":
    sys.exit(main())
