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
    """Whatever is examined. length, batch: of the inputs that it draws for a change."""

    @property
    def length(self) -> int: ...

    @property
    def batch(self) -> int: ...

    def moved(self, change: Change, words: str) -> Measured:
        """The movement of outputs that should stay, and what rounding explains; `words` say what moves what."""


def future(
    subject: Subject,
    cut: int,
    words: str,
    *,
    parts: tuple[str, ...] = (),
    valid: Tensor | None = None,
    training: bool = False,
) -> Measured:
    """The movement of outputs before position `cut` by other content from there on."""
    late = (torch.arange(subject.length) >= cut).expand(subject.batch, subject.length)
    look = ~late if valid is None else ~late & valid
    change = Change(where=late, look=look, parts=parts, valid=valid, causal=True, training=training)
    return subject.moved(change, words)
