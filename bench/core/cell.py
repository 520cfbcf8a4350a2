"""Cell: one measurement to make, addressed by its content. Job: the cells that one process runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .decode import Count, Name, Seed
from .hashing import content_hash
from .spec import Spec

PROTOCOL = 1
"""Records of one protocol are comparable. Raise it when a change moves numbers for every variant."""

REFERENCE = "softmax"
"""The variant that every relative figure is relative to."""

NO_ATTENTION = "no-attention"
"""The variant that is identity: trained like the others, a row of the baselines, and no competitor."""

FIRST_TUNING_SEED = 100
"""Seeds from here on choose the settings of a preset; boards use those below."""

Lane = Literal["train", "time", "baseline", "tune"]
Selection = Literal["validation", "test"]

LEAST_SEEDS = 3
LEAST_ROUNDS = 3

# Raise a version when a change moves the numbers of every variant in that lane; Records of two versions are never
# averaged. `tests/golden` fails when the code has changed and the version has not. Objectives: see `Problem`.
LANE_VERSIONS = {"train": 1, "time": 1, "baseline": 1, "tune": 1}

VERSION_ZERO = "version 0"
"""Records made before versions were declared."""

RATE_SETTINGS = ("learning_rate", "learning_rates", "tuning_seeds", "rate_extensions", "query_key_scales")
"""The settings of a preset that only choose a learning rate, and at it the factor on queries and keys."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Variant × task × preset × seed × lane × model selection × protocol.

    `variant` names a trivial baseline of the task in the lane `baseline`. The lane `tune` trains at one learning rate
    of a preset's grid, at a seed from `FIRST_TUNING_SEED` on, and is on no board. `selection` is the split on which the
    best checkpoint is chosen; `test` reproduces Long Range Arena's own practice and is marked on the board.
    """

    variant: Spec
    task: Spec
    preset: Spec
    seed: Seed = 0
    lane: Lane = "train"
    selection: Selection = "validation"
    protocol: Count = PROTOCOL

    @cached_property
    def key(self) -> str:
        """Hash of the canonical JSON: file name, cache key and citation."""
        return content_hash(self.to_json())

    def to_json(self) -> dict[str, Any]:
        # written out: every Record that is read computes its key from this
        return {
            "variant": str(self.variant),
            "task": str(self.task),
            "preset": str(self.preset),
            "seed": self.seed,
            "lane": self.lane,
            "selection": self.selection,
            "protocol": self.protocol,
        }

    def __str__(self) -> str:
        return f"{self.variant} on {self.task}, {self.preset}, seed {self.seed}, {self.lane}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The Cells that one process runs: one to train, one baseline, or those of one task to time in turns.

    `id`: a hash of its Cells and their code. Records carry it as `block`, since that is the word of the stored files.
    `digests`: what the Records carry, by cell key; they end with the hash of the variant's source. `series`: jobs of
    one series run one after another, in order.

    The rest is filled in where a job is submitted. `rates`: by cell key, the learning rate that was chosen for a Cell
    whose preset has a grid; `scales`: the factor on queries and keys. `threads`: processor threads to pin, 0 = as the
    machine has cores. `timeout`: seconds that one Cell may take before another has its turn. `gpu`: the one GPU that
    the child sees, as CUDA_VISIBLE_DEVICES names it; empty leaves that to the engine. `even_if_wrong`: measure what the
    gate finds wrong too. `executor`, `node`: what the Records carry.
    """

    id: str
    cells: tuple[Cell, ...]
    digests: dict[str, str]
    series: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    results: Path = Path()
    data_dir: Path | None = None
    offline: bool = False
    threads: int = 0
    timeout: float | None = None
    gpu: Name = ""
    even_if_wrong: bool = False
    executor: Name = "local"
    node: Name = ""

    @property
    def lane(self) -> Lane:
        return self.cells[0].lane
