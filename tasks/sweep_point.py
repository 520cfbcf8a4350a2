"""The contract of a task that is only timed: one point of a sweep, and the inputs that all variants get there."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .contract import Lane, Task
from .preset import Recipe

Mode = Literal["forward", "step", "decode"]
Level = Literal["attention", "block", "model"]
Precision = Literal["float32", "bfloat16", "float16"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Recipe):
    """What is timed at one point. `length`: tokens per sequence, `batch` sequences of them.

    `level`: the variant alone on projected heads, in a Transformer block, or in the whole encoder. `mode`: a forward
    pass without gradients; a training step; the last tokens of decoding a sequence of that length. `padding`: share of
    each sequence, at its end, that is padding. `graph`: on CUDA the work is captured once and replayed. `memory_bytes`:
    where it is given nothing is timed, but the longest length looked for that runs in so many bytes.
    """

    level: Level = "attention"
    mode: Mode = "step"
    dtype: Precision = "float32"
    causal: bool = False
    input: str = "iid"
    padding: float = 0.0
    graph: bool = False
    memory_bytes: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    timing_seconds: float = 20.0

    @property
    def real(self) -> int:
        """Tokens of each sequence that are not padding."""
        return self.length - round(self.padding * self.length)

    @property
    def decoding(self) -> bool:
        return self.mode == "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Projected heads, each (batch, heads, length, head_dim)."""

    query: Floats
    key: Floats
    value: Floats


class TimedTask(Task):
    """A task without labels: its recipes are Points, and every variant is timed on the inputs that it draws."""

    lanes: ClassVar[tuple[Lane, ...]] = ("time",)

    @abstractmethod
    def heads(self, point: Point) -> Heads:
        """What attention alone is fed, by the seed of the task and nothing of the variant."""

    @abstractmethod
    def states(self, point: Point) -> Floats:
        """What a block is fed: (batch, length, width)."""
