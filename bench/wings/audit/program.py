"""Programs of plain torch that print what was found, line by line, for a module `m`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from ...gate.subject import Change
from .calls import Convention

LOWEST = 3
"""The first token that is drawn: lower ones may mean padding."""


def of_change(convention: Convention, change: Change, *, by_channel: bool = False) -> Iterator[str]:
    """Lines that print how far outputs move by a change, over their standard deviation, or that of their channel."""
    kind, shape = convention.kind, convention.shape
    batch, length = change.where.shape
    call = convention.call(padded=change.valid is not None, causal=change.causal)
    if change.training:
        yield "m.train()"
    yield from setup(convention, call, change.valid, change.causal, batch=batch, length=length)
    yield from assigned("where", change.where)
    yield from assigned("look", change.look)
    other = {
        "model": f"torch.where(where, (x - {LOWEST} + 7) % ({shape[0]} - {LOWEST}) + {LOWEST}, x)",
        "layer": "torch.where(where[..., None], 3 * x.roll(1, 0) + 1, x)",
        "qkv": "torch.where(where[:, None, :, None], 3 * x.roll(1, 0) + 1, x)",
    }[kind]
    yield f"def out({convention.names}):\n    torch.manual_seed(0)\n    return ({call}){convention.turned}"
    yield f"a, b = out({convention.names}), out(*[{other} for x in ({convention.names},)])"
    if by_channel:
        yield "each, whole = a[look].flatten(1).std(0), a[look].std()"
        yield "print(((a - b)[look].flatten(1).abs() / each.clamp(min=1e-6 * whole)).max())"
    else:
        yield "print((a - b)[look].abs().max() / a[look].std())"


def setup(
    convention: Convention,
    call: object,
    valid: Tensor | None = None,
    causal: bool = False,
    *,
    batch: int = 2,
    length: int = 0,
) -> Iterator[str]:
    """The lines that draw the inputs, and make the masks that a call names."""
    kind, shape = convention.kind, convention.shape
    length = length or convention.length
    yield "g = torch.Generator().manual_seed(0)"
    if kind == "model":
        yield f"ids = torch.randint({LOWEST}, {shape[0]}, ({batch}, {length}), generator=g)"
    elif kind == "layer":
        yield f"x = torch.randn({batch}, {length}, {shape[0]}, generator=g)"
    else:
        yield f"q, k, v = [torch.randn({batch}, {shape[0]}, {length}, {shape[1]}, generator=g) for _ in range(3)]"
    yield from masks(call, batch, length, valid, causal)


def with_out(convention: Convention, call: object, batch: int, length: int, causal: bool) -> Iterator[str]:
    """Lines that draw `inputs`, and define `out(inputs)` (batch, positions, …), for `m` or a copy of it, and `part`."""
    yield from setup(convention, "", batch=batch, length=length)
    axis = 2 if convention.kind == "qkv" else 1
    yield f"inputs = ({convention.names},)"
    yield f"part = lambda inputs, first, last: tuple(x.narrow({axis}, first, last - first) for x in inputs)"
    yield f"def out(inputs, m=m):\n    torch.manual_seed(0); {convention.names}, = inputs; n = inputs[0].shape[{axis}]"
    for line in masks(call, "len(inputs[0])", "n", None, causal):
        yield "\n".join(f"    {each}" for each in line.split("\n"))
    yield f"    return ({call}){convention.turned}"


def beside_alone(
    convention: Convention, call: object, plain: object, first: int, length: int, valid: Tensor | None, causal: bool
) -> Iterator[str]:
    """Lines that print how far the positions from `first` on in one row are from the `plain` call of these alone."""
    axis, rest = 2 if convention.kind == "qkv" else 1, length - first
    yield from setup(convention, call, valid, causal, batch=1, length=length)
    yield f"a = ({call}){convention.turned}[:, {first}:]"
    yield from masks(plain, 1, rest, None, causal)
    yield f"{convention.names}, = [x.narrow({axis}, {first}, {rest}) for x in ({convention.names},)]"
    yield f"b = ({plain}){convention.turned}"
    yield "print((a - b).abs().max() / b.std())"


def masks(call: object, batch: int | str, length: int | str, valid: Tensor | None, causal: bool) -> Iterator[str]:
    """The lines that make the masks that a call names."""
    named = {name for name in ("valid", "seen", "pairs", "bias") if name in str(call)}
    if re.search(r"\b(positions|rotary)\b(?!=)", str(call)):
        yield f"positions = torch.arange({length})[None]"
    if "rotary" in str(call):
        yield "def rotary(size):\n    rates = 10000.0 ** -(torch.arange(0, size, 2) / size)"
        yield "    a = positions[..., None] * torch.cat((rates, rates)); return a.cos(), a.sin()"
    if named & {"valid", "pairs", "bias"}:
        everywhere = [f"valid = torch.ones({batch}, {length}, dtype=torch.bool)"]
        yield from everywhere if valid is None else assigned("valid", valid)
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
