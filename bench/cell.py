"""Cell: one measurement to make, addressed by its content; and the seeds that cells draw from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
        return asdict(self) | {name: str(getattr(self, name)) for name in ("variant", "task", "preset")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Cell:
        return cls(**values | {name: Spec.parse(values[name]) for name in ("variant", "task", "preset")})

    def __str__(self) -> str:
        return f"{self.variant} on {self.task}, {self.preset}, seed {self.seed}, {self.lane}"


def content_hash(value: Any, digits: int = 16) -> str:
    """Hexadecimal SHA-256 of the canonical JSON of `value`, cut to `digits`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def axis_seed(**axes: Any) -> int:
    """A seed in [0, 2**63) that depends on the named axes and on nothing else.

    What an axis leaves out is shared along it: data order takes task and seed but no variant, so runs are paired.

    >>> axis_seed(use="order", task="lra-text", seed=0) == axis_seed(seed=0, task="lra-text", use="order")
    True
    """
    return int(content_hash({name: str(value) for name, value in axes.items()}), 16) >> 1
