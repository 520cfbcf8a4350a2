"""Subject: whatever is examined, behind few operations, so that one test serves a variant and a module of anybody.

A Case of a variant is a Subject where other content is moved; a module of anybody, with the call that was found for it,
is one in all. Comparing happens outside: a Subject only makes inputs and gives back tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .result import Measured

Tensors = tuple[Tensor, ...]


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


class Moving(Protocol):
    """An object that takes a Change. length, batch: of the inputs that it draws for one."""

    @property
    def length(self) -> int: ...

    @property
    def batch(self) -> int: ...

    def moved(self, change: Change, words: str) -> Measured:
        """The movement of outputs that should stay, and what rounding explains; `words` say what moves what."""


class Subject(Moving, Protocol):
    """A module or function that maps positions to positions. claims: it is to be causal, and is called so.

    Inputs are drawn by it, (batch, …, positions, …); outputs are (batch, positions, …) whatever the module gives.
    """

    @property
    def claims(self) -> bool: ...

    @property
    def looks_back(self) -> bool:
        """True if no output depends on later inputs, claimed or found."""

    @property
    def pads(self) -> bool:
        """True if it takes a mask of padding."""

    @property
    def has_inputs_of_numbers(self) -> bool:
        """True if its inputs have gradients: tokens have none."""

    def draw(self, batch: int = 2, length: int | None = None, seed: int = 0) -> Tensors:
        """Inputs of the standard normal distribution, or tokens."""

    def part(self, inputs: Tensors, first: int, last: int) -> Tensors:
        """Positions first .. last - 1."""

    def changed(self, inputs: Tensors, where: Tensor) -> Tensors:
        """Other content at `where` (batch, positions)."""

    def outputs(
        self, inputs: Tensors, valid: Tensor | None = None, causal: bool | None = None, *, seed: int = 0
    ) -> Tensor:
        """The outputs, without gradients; `causal` None: as it claims. seed: of the numbers that it draws."""

    def trained(self) -> dict[str, Tensor]:
        """The parameters that learn, by name."""

    def outputs_with(self, name: str, values: Tensor, inputs: Tensors) -> Tensor:
        """The outputs with other numbers for the parameter of this name, which gets its own back."""

    def in_autocast(self, dtype: str, inputs: Tensors) -> Tensor:
        """The outputs where PyTorch lowers the precision by itself."""

    def state(self) -> dict[str, Tensor]:
        """A copy of what is saved of the module: a buffer that is not saved is a cache."""

    def passes(self, inputs: Tensors, valid: Tensor | None = None, arriving: Tensor | None = None) -> list[Tensor]:
        """The outputs, and the gradients of the inputs for one `arriving` at the outputs, or drawn; all by position."""

    def fresh(self, *, training: bool = False, double: bool = False, rate: float | None = None) -> Subject:
        """A copy that no call has met; `double`: in float64; `rate`: of dropout, everywhere."""

    def dropout_name(self) -> str:
        """The name of something that is named after dropout, so that a rate has to drop something; else empty."""

    def after(self, inputs: Tensors, others: Tensors) -> list[Tensor]:
        """The inputs after a call, its output at once, and the same tensor after a call on `others`."""

    def refilled(self, inputs: Tensors, others: Tensors) -> Tensor:
        """The outputs for `others`, which are written over the inputs of a call before."""

    def masks_behind(self, inputs: Tensors, valid: Tensor) -> list[str]:
        """The names, or numbers, of the arguments that a call with this mask has changed in place."""

    def seeds_behind(self, inputs: Tensors) -> list[Tensor]:
        """The states of random numbers behind two calls with other seeds."""

    @property
    def seconds(self) -> float:
        """Processor time that it may have taken so far."""

    def compared(
        self, words: str, found: Tensor, expected: Tensor, *lines: str, batch: int = 2, length: int | None = None
    ) -> Measured:
        """The difference of two outputs or gradients; `lines` of a program make them as `a` and `b`."""

    def shown(self, *lines: str, batch: int = 2, length: int | None = None) -> tuple[str, ...]:
        """A program of `lines` behind those that draw `inputs` and define `out(inputs)` and `part(inputs, 0, 9)`."""


def future(
    subject: Moving,
    cut: int,
    words: str,
    *,
    parts: tuple[str, ...] = (),
    valid: Tensor | None = None,
    training: bool = False,
    length: int | None = None,
    batch: int | None = None,
) -> Measured:
    """The movement of outputs before position `cut` by other content from there on.

    length: of the inputs, on one sequence, where it is not that of the subject; batch: of the sequences likewise.
    """
    size = (batch or subject.batch, subject.length) if length is None else (1, length)
    late = (torch.arange(size[1]) >= cut).expand(size)
    look = ~late if valid is None else ~late & valid
    change = Change(where=late, look=look, parts=parts, valid=valid, causal=True, training=training)
    return subject.moved(change, words)
