"""Options of a run: what is measured, where and how, in one value whose bounds are checked once."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from ..core.cell import Lane, Selection
from ..core.errors import SelectionError
from ..core.paths import RESULTS
from ..core.spec import Spec
from .executor_settings import ExecutorSettings

MOST_SEEDS = 1_000
MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `run` and `plan`, parsed but not yet looked up on this machine; None leaves a choice to it.

    A command line, Python and the file of a suite fill it; `plan/suite.py` joins them. `suite`: its name, empty without
    one. `preset`: such as `quick[steps=100]`. `seeds`: how many. `selection`: split that chooses the checkpoint.
    `lanes`: only these kinds of job. `device`: `cpu`, `cuda` or `cuda:1`. `results`: folder of the Records. `data_dir`:
    folder of original data. `offline`: never download. `retry`: run failed cells again. `timeout`: seconds that a cell
    may take. `threads`: of the processor for each job, 0 for its share of the cores. `executor`: where jobs run, how
    many at once, and its own options.
    """

    variants: tuple[Spec, ...]
    tasks: tuple[Spec, ...]
    suite: str = ""
    description: str = ""
    preset: Spec | None = None
    seeds: int | None = None
    selection: Selection = "validation"
    lanes: tuple[Lane, ...] = get_args(Lane)
    device: str | None = None
    results: Path = RESULTS
    data_dir: Path | None = None
    offline: bool = False
    retry: bool = False
    timeout: float | None = None
    threads: int = 0
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    def __post_init__(self) -> None:
        """Raises SelectionError for a value that no machine, or not this one, can run with."""
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise SelectionError(f"expected a count of seeds from 1 to {MOST_SEEDS:,}, got {self.seeds:,}")
        cells = len(self.tasks) * len(self.variants) * (self.seeds or 1)
        if cells > MOST_CELLS:
            raise SelectionError(
                f"expected at most {MOST_CELLS:,} cells, got {cells:,}: {len(self.variants):,} variants, "
                f"{len(self.tasks):,} tasks, {self.seeds or 1:,} seeds; choose fewer"
            )
        if self.selection not in get_args(Selection):
            words = " or ".join(get_args(Selection))
            raise SelectionError(f"expected selection to be {words}, got {self.selection!r}")
        unknown = set(self.lanes) - set(get_args(Lane))
        if unknown or not self.lanes:
            got = ", ".join(map(repr, sorted(unknown))) or "none"
            raise SelectionError(f"expected lanes among {', '.join(get_args(Lane))}, got {got}")
        if self.timeout is not None and not 1 <= self.timeout < math.inf:
            raise SelectionError(f"expected a time limit of 1 second or more, got {self.timeout}")
        # a node of a cluster may have more than this machine
        cores = os.cpu_count() or 1 if self.executor.name == "local" else 1024
        if not 0 <= self.threads <= max(cores, 2):
            raise SelectionError(f"expected 0 to {cores:,} threads, as this machine has cores, got {self.threads:,}")
