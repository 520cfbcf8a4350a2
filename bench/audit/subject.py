"""Subject: a foreign module or function with its Convention, called in one way whatever it is.

    subject = recognise(module)             # of `convention.py`; or a function over q, k and v
    subject((x,), valid=valid)              # x (batch, positions, width), valid (batch, positions): True is a token

A call is the text of a Python expression, so that what was found is what a person reads, can replace (`--call`) and
finds again in the lines that reproduce a finding. Its names: `m` the module; `x`, `q`, `k`, `v` or `ids`; `valid`, True
at tokens; `pairs` (batch, 1, queries, keys), True where a query may see a key; `seen` (queries, keys), the causal part
of it; `bias`, 0 where `pairs` is True and the lowest number elsewhere; `causal`, whether it is to be causal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import SelectionError

Kind = Literal["qkv", "layer", "model"]
Inputs = tuple[Tensor, ...]
Call = str | Callable[..., Any]

NAMES: dict[Kind, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "layer": ("x",), "model": ("ids",)}

STILL = 1e-5
"""The part of the output's spread that a rounding may move, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a subject is called. Each call is an expression; empty where the subject takes no such thing.

    shape: of one input without batch and positions: (heads, head_dim), (width,), or (vocabulary,) of ids.
    causal: what makes it causal where `plain` does not. mask_ignored: the mask argument moves nothing.
    question: what could not be found out about the mask.
    """

    kind: Kind
    shape: tuple[int, ...]
    length: int
    plain: Call
    padded: Call = ""
    causal: Call = ""
    padded_causal: Call = ""
    mask_ignored: bool = False
    question: str = ""

    def call(self, *, padded: bool, causal: bool) -> Call:
        """The call with or without padding and the switch; what is causal by itself needs no switch."""
        switched = causal and bool(self.causal)
        return (self.padded_causal if padded else self.causal) if switched else (self.padded if padded else self.plain)

    def __str__(self) -> str:
        kinds = {"qkv": "a function of query, key and value", "layer": "a layer", "model": "a model"}
        calls = {"call": self.plain, "padding": self.padded, "causal": self.causal}
        said = [f"{name} {call if isinstance(call, str) else '(given)'}" for name, call in calls.items() if call]
        shapes = {"qkv": "(B, {}, N, {})", "layer": "(B, N, {})", "model": "ids (B, N) below {}"}
        return f"{kinds[self.kind]} {shapes[self.kind].format(*self.shape)}: {' · '.join(said)}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A module or function with its convention, called in one way whatever it is."""

    module: Any
    convention: Convention

    def __call__(self, inputs: Inputs, valid: Tensor | None = None, causal: bool = False) -> Tensor:
        """Output (batch, heads, positions, head_dim) of q, k, v; (batch, positions, width or vocabulary) of others.

        inputs: q, k, v (batch, heads, positions, head_dim); x (batch, positions, width); or ids (batch, positions).
        """
        call = self.convention.call(padded=valid is not None, causal=causal)
        if not call:
            raise SelectionError("expected a call with a mask, and this subject takes none")
        return run(call, self.module, self.convention.kind, inputs, valid, causal)

    def draw(self, batch: int = 2, length: int | None = None, seed: int = 0) -> Inputs:
        """Inputs of the standard normal distribution, or tokens."""
        return draw(self.convention.kind, self.convention.shape, batch, length or self.convention.length, seed)

    def with_module(self, module: Any) -> Subject:
        return Subject(module, self.convention)


def run(
    call: Call, module: Any, kind: Kind, inputs: Inputs, valid: Tensor | None, causal: bool, seed: int = 0
) -> Tensor:
    """The output of one call as a tensor."""
    output = run_raw(call, module, kind, inputs, valid, causal, seed)
    return output if isinstance(output, Tensor) else first_tensor(output)


def run_raw(
    call: Call, module: Any, kind: Kind, inputs: Inputs, valid: Tensor | None, causal: bool, seed: int = 0
) -> Any:
    """What one call returns; random numbers are those of the seed each time."""
    torch.manual_seed(seed)
    names = dict(zip(NAMES[kind], inputs, strict=True)) | mask_names(inputs[0], kind, valid, causal)
    if isinstance(call, str):
        return eval(call, {"torch": torch, "m": module, **names})
    takes_valid = len(inspect.signature(call).parameters) > 1 + len(inputs)
    return call(module, *inputs, *((names["valid"],) if takes_valid else ()))


def mask_names(like: Tensor, kind: Kind, valid: Tensor | None, causal: bool) -> dict[str, Any]:
    """`valid`, `seen`, `pairs`, `bias` and `causal` as the expressions of calls know them."""
    length = like.shape[2 if kind == "qkv" else 1]
    if valid is None:
        valid = torch.ones(like.shape[0], length, dtype=torch.bool)
    seen = torch.ones(length, length, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    pairs = valid[:, None, None] & seen
    dtype = like.dtype if like.is_floating_point() else torch.float32
    bias = torch.zeros(pairs.shape, dtype=dtype).masked_fill(~pairs, torch.finfo(dtype).min)
    return {"valid": valid, "seen": seen, "pairs": pairs, "bias": bias, "causal": causal}


def first_tensor(output: Any) -> Tensor:
    """The output among several: the logits or the first tensor of floats."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            found: Tensor = getattr(output, name)
            return found
    values = output.values() if isinstance(output, dict) else output
    return next(each for each in values if isinstance(each, Tensor) and each.is_floating_point())


def draw(kind: Kind, shape: tuple[int, ...], batch: int, length: int, seed: int) -> Inputs:
    """Inputs as `Subject.draw`. The first tokens of a vocabulary are left out: they may mean padding."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "model":
        return (torch.randint(min(3, shape[0] - 1), shape[0], (batch, length), generator=generator),)
    if kind == "layer":
        return (torch.randn(batch, length, *shape, generator=generator),)
    size = (batch, shape[0], length, shape[1])
    return tuple(torch.randn(size, generator=generator) for _ in range(3))


def changed(subject_kind: Kind, inputs: Inputs, where: Tensor, vocabulary: int = 0) -> Inputs:
    """`inputs` with other content at `where` (batch, positions); queries too, since a position is one token."""
    if subject_kind == "model":
        low = min(3, vocabulary - 1)
        return (torch.where(where, (inputs[0] - low + 7) % (vocabulary - low) + low, inputs[0]),)
    shape = where[:, None, :, None] if subject_kind == "qkv" else where[..., None]
    return tuple(torch.where(shape, 3 * each.roll(1, 0) + 1, each) for each in inputs)


def by_position(output: Tensor, kind: Kind) -> Tensor:
    """(batch, positions, …) of any output."""
    return output.transpose(1, 2) if kind == "qkv" else output
