"""Cell: one measurement to make, addressed by its content; and the seeds that cells draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .decode import to_builtins
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
    seed: int = 0
    lane: Lane = "train"
    selection: Selection = "validation"
    protocol: int = PROTOCOL

    @property
    def key(self) -> str:
        """Hash of the canonical JSON: file name, cache key and citation."""
        return content_hash(self.to_json())

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = to_builtins(self)
        return values

    def __str__(self) -> str:
        return f"{self.variant} on {self.task}, {self.preset}, seed {self.seed}, {self.lane}"
