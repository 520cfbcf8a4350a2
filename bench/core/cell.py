"""Cell: one measurement to make, addressed by its content; and the seeds that cells draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .bounds import Count, Seed
from .hashing import content_hash
from .spec import Spec

PROTOCOL = 1
"""Records of one protocol are comparable. Raise it when a change moves numbers for every variant."""

REFERENCE = "softmax"
"""The variant that every relative figure is relative to."""

Lane = Literal["train", "time", "baseline"]
Selection = Literal["validation", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Variant × task × preset × seed × lane × model selection × protocol.

    `variant` names a trivial baseline of the task in the lane `baseline`. `selection` is the split on which the best
    checkpoint is chosen; `test` reproduces Long Range Arena's own practice and is marked on the board.
    """

    variant: Spec
    task: Spec
    preset: Spec
    seed: Seed = 0
    lane: Lane = "train"
    selection: Selection = "validation"
    protocol: Count = PROTOCOL

    @property
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
