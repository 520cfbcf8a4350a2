"""Jobs: the orders of a worker, sent to it as one line each; see `process/child.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.bounds import Name
from ..core.cell import Cell

WORKER = "attnbench.bench.run.worker"
"""The module that runs jobs in a child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. `digests`: what the Records carry, by cell key; they end with the hash of the variant's source.

    `rates`: by cell key, the learning rate that was chosen for a cell whose preset has a grid.
    `threads`: processor threads to pin, 0 = as the machine has cores. `timeout`: seconds that one Cell may take before
    another has its turn. `gpu`: the one GPU that the child sees, as CUDA_VISIBLE_DEVICES names it; empty leaves that to
    the engine. `executor`, `node`: what the Records carry.
    """

    block: str
    cells: tuple[Cell, ...]
    digests: dict[str, str]
    device: str
    results: Path
    data_dir: Path | None
    offline: bool
    rates: dict[str, float] = field(default_factory=dict)
    threads: int = 0
    timeout: float | None = None
    gpu: Name = ""
    executor: Name = "local"
    node: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLengthJob:
    """The variant and the sweep point of `cell`, to be tried at the lengths that follow, within `memory_bytes`."""

    cell: Cell
    device: str
    threads: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeJob:
    """The machine is to be described as it is with `device`, in a process that may use it; `threads` as of a job."""

    device: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJob:
    """The one variant of `cells` is to be examined at all of their shapes, and compiled in `threads` threads."""

    cells: tuple[Cell, ...]
    device: str
    data_dir: Path | None
    offline: bool
    threads: int
