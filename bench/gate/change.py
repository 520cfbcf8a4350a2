"""Change: other content at some positions, by which outputs at others must not move: the future, padding, neighbours.

A test of changes asks a Subject, whoever wrote it: a Case of a variant, or a module of anybody with the call that was
found for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .result import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Content changes at `where` (batch, positions), and outputs at `look`, of the same shape, should stay.

    parts: of the inputs, such as "value"; empty for all. valid: True at tokens, for a mask of padding, or None. causal,
    training: whether a module that has both ways of use is called as causal, and in training mode, with the same draws
    of dropout before and after.
    """

    where: Tensor
    look: Tensor
    parts: tuple[str, ...] = ()
    valid: Tensor | None = None
    causal: bool = False
    training: bool = False


class Subject(Protocol):
    """Whatever is examined."""

    def moved(self, change: Change, words: str) -> Measured:
        """The movement of outputs that should stay, and what rounding explains; `words` say what moves what."""


def future(length: int, cut: int, batch: int, parts: tuple[str, ...] = ()) -> Change:
    """Another content of all positions from `cut` on, which must not move outputs before it."""
    late = (torch.arange(length) >= cut).expand(batch, length)
    return Change(where=late, look=~late, parts=parts, causal=True)
