"""Cell: one measurement to make, addressed by its content; and the seeds that cells draw from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from .bounds import Count, Seed
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
