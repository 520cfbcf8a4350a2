"""Experiment: other content at some positions, and how far outputs at others move; with the program that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .subject import NAMES, STILL, Inputs, Subject, by_position, changed

LOWEST = 3
"""The first token that is drawn: lower ones may mean padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Content changes at `where` (batch, positions), and outputs at `look` should stay.

    valid: True at tokens, for the mask argument; None calls without one. training: in training mode, with the same
    draws of dropout in both calls.
    """

    where: Tensor
    look: Tensor
    valid: Tensor | None = None
    causal: bool = False
    training: bool = False

    def movement(self, subject: Subject) -> Tensor:
        """How far each output moves, (batch, positions), over the standard deviation of all.

        What becomes NaN, or is no more, moves endlessly; what is NaN both times has not moved.
        """
        batch, length = self.where.shape
        inputs = subject.draw(batch, length)
        kind, vocabulary = subject.convention.kind, subject.convention.shape[0]
        with torch.no_grad():
            base = self._output(subject, inputs)
            other = self._output(subject, changed(kind, inputs, self.where, vocabulary))
        spread = base[self.look & base.flatten(2).isfinite().all(-1)].std().clamp(min=1e-30)
        same = (other.isnan() & base.isnan()) | (other == base)
        moved = torch.where(same, 0.0, (other - base).nan_to_num(nan=torch.inf)).flatten(2).abs().amax(-1)
        return torch.where(self.look, moved / spread, 0.0)

    def size(self, subject: Subject) -> float:
        """The largest movement; 0 where it is no more than rounding."""
        found = float(self.movement(subject).max())
        return found if found > STILL else 0.0

    def _output(self, subject: Subject, inputs: Inputs) -> Tensor:
        if self.training:
            # statistics that a module keeps in training must not pass from one call to the next
            subject = subject.with_module(deepcopy(subject.module).train())
        return by_position(subject(inputs, self.valid, self.causal), subject.convention.kind)

    def program(self, subject: Subject) -> Iterator[str]:
        """Lines of plain torch that print the size, for a module `m`."""
        kind, shape = subject.convention.kind, subject.convention.shape
        batch, length = self.where.shape
        call = subject.convention.call(padded=self.valid is not None, causal=self.causal)
        yield from setup(subject, call, self.valid, self.causal, batch=batch, length=length)
        yield from assigned("where", self.where)
        yield from assigned("look", self.look)
        other = {
            "model": f"torch.where(where, (x - {LOWEST} + 7) % ({shape[0]} - {LOWEST}) + {LOWEST}, x)",
            "layer": "torch.where(where[..., None], 3 * x.roll(1, 0) + 1, x)",
            "qkv": "torch.where(where[:, None, :, None], 3 * x.roll(1, 0) + 1, x)",
        }[kind]
        names = ", ".join(NAMES[kind])
        turned = ".transpose(1, 2)" if kind == "qkv" else ""
        yield f"def out({names}):\n    torch.manual_seed(0)\n    return ({call}){turned}"
        yield f"a, b = out({names}), out(*[{other} for x in ({names},)])"
        yield "print((a - b)[look].abs().max() / a[look].std())"


def setup(
    subject: Subject,
    call: object,
    valid: Tensor | None = None,
    causal: bool = False,
    *,
    batch: int = 2,
    length: int = 0,
) -> Iterator[str]:
    """The lines that draw the inputs, and make the masks that a call names."""
    kind, shape = subject.convention.kind, subject.convention.shape
    length = length or subject.convention.length
    yield "g = torch.Generator().manual_seed(0)"
    if kind == "model":
        yield f"ids = torch.randint({LOWEST}, {shape[0]}, ({batch}, {length}), generator=g)"
    elif kind == "layer":
        yield f"x = torch.randn({batch}, {length}, {shape[0]}, generator=g)"
    else:
        yield f"q, k, v = [torch.randn({batch}, {shape[0]}, {length}, {shape[1]}, generator=g) for _ in range(3)]"
    yield from masks(call, batch, length, valid, causal)


def masks(call: object, batch: int, length: int, valid: Tensor | None, causal: bool) -> Iterator[str]:
    """The lines that make the masks that a call names."""
    named = {name for name in ("valid", "seen", "pairs", "bias") if name in str(call)}
    if re.search(r"\b(positions|rotary)\b(?!=)", str(call)):
        yield f"positions = torch.arange({length})[None]"
    if "rotary" in str(call):
        yield "def rotary(size):\n    rates = 10000.0 ** -(torch.arange(0, size, 2) / size)"
        yield "    a = positions[..., None] * torch.cat((rates, rates)); return a.cos(), a.sin()"
    if named & {"valid", "pairs", "bias"}:
        yield from assigned("valid", torch.ones(batch, length, dtype=torch.bool) if valid is None else valid)
    if named & {"seen", "pairs", "bias"}:
        yield f"seen = torch.ones({length}, {length}, dtype=torch.bool){'.tril()' if causal else ''}"
    if named & {"pairs", "bias"}:
        yield "pairs = valid[:, None, None] & seen"
    if "bias" in named:
        yield "bias = torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)"


def assigned(name: str, values: Tensor) -> Iterator[str]:
    """The line that makes a Boolean (batch, positions): a constant, and the ranges that differ from it."""
    most = bool(values.float().mean() > 0.5)
    parts = [f"{name} = torch.{'ones' if most else 'zeros'}({values.shape[0]}, {values.shape[1]}, dtype=torch.bool)"]
    rows = [(":", values[0])] if bool((values == values[0]).all()) else list(enumerate(values))
    for row, places in rows:
        edges = torch.cat([torch.tensor([False]), places != most, torch.tensor([False])]).int().diff()
        for start, end in zip((edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten(), strict=True):
            parts.append(f"{name}[{row}, {int(start)}:{int(end)}] = {not most}")
    yield "; ".join(parts)


def confirmed(experiment: Experiment, subject: Subject) -> float:
    """The size in float32; 0 where float64 shows that it was rounding."""
    found = experiment.size(subject)
    if found and isinstance(subject.module, nn.Module) and not _moves_in_float64(experiment, subject, found):
        return 0.0
    return found


def _moves_in_float64(experiment: Experiment, subject: Subject, single: float) -> bool:
    double = subject.with_module(deepcopy(subject.module).double())
    try:
        inputs_double = _Double(double.module, double.convention)
        return experiment.size(inputs_double) > single * 1e-3
    except Exception:
        # a module of float32 alone is judged by float32
        return True


class _Double(Subject):
    """A subject of float64, whose inputs are too."""

    __slots__ = ()

    def draw(self, batch: int = 2, length: int | None = None, seed: int = 0) -> Inputs:
        return tuple(each.double() if each.is_floating_point() else each for each in Subject.draw(self, batch, length))
