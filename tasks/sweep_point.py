"""The contract of a task that is only timed: one point of a sweep, and the inputs of all variants at that point."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .contract import Lane, Task
from .preset import Recipe

Mode = Literal["forward", "step", "decode"]
Level = Literal["attention", "layer", "block", "model"]
Precision = Literal["float32", "bfloat16", "float16"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Recipe):
    """The settings of one measurement: `batch` sequences of `length` tokens.

    `level`: the variant alone on projected heads, with its projections, in a Transformer block, or in the whole
    encoder. `mode`: a forward pass without gradients; a training step; the last tokens of decoding a sequence of that
    length. `padding`: share of padding at the end of each sequence. `graph`: on CUDA, capture the work once and replay
    it. `compile`: the level's forward pass goes through torch.compile, as one graph. `memory_bytes`: search for the
    longest length that runs in so many bytes, and time nothing. `kv_heads`: heads of keys and values; None = `heads`.
    """

    level: Level = "attention"
    mode: Mode = "step"
    dtype: Precision = "float32"
    causal: bool = False
    input: str = "iid"
    padding: float = 0.0
    graph: bool = False
    compile: bool = False
    memory_bytes: int | None = None
    kv_heads: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    timing_seconds: float = 60.0
    resolution: float = 0.05

    @property
    def real(self) -> int:
        """Tokens of each sequence that are not padding."""
        return self.length - round(self.padding * self.length)

    @property
    def decoding(self) -> bool:
        return self.mode == "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Projected heads: query (batch, heads, length, head_dim), key and value (batch, kv_heads, length, head_dim)."""

    query: Floats
    key: Floats
    value: Floats


class TimedTask(Task):
    """A task without labels. Its recipes are Points, and every variant is timed on the same drawn inputs."""

    lanes: ClassVar[tuple[Lane, ...]] = ("time",)

    @abstractmethod
    def heads(self, point: Point) -> Heads:
        """The input of attention alone. It depends on the task's seed and not on the variant."""

    @abstractmethod
    def states(self, point: Point) -> Floats:
        """The input of a layer or a block, (batch, length, width)."""
