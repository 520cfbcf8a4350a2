"""Decoding: token by token and in pieces with a cache, against one pass."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .convention import REFUSALS, parameters_of, with_argument
from .experiment import drawing
from .report import Finding
from .subject import NAMES, Inputs, Subject, first_tensor, run_raw

CACHES = ("past_key_values", "past_key_value", "layer_past", "past", "cache_params", "kv_cache", "cache", "state")
SWITCHES = ("use_cache", "return_cache", "return_state", "output_cache")

ALLOWED = 1e-3
"""Of the output's standard deviation: other products in another order, but no other function."""

LENGTH = 24
"""Positions of a decoded sequence, where the subject takes so few."""

PREFILL = 13


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a subject hands on its cache.

    call: the first; argument: what takes the cache; place: where an output holds it. whole: later calls get the
    sequence from its begin, as some libraries have it, and not the new positions alone.
    """

    call: str
    argument: str
    place: str
    whole: bool = False

    @property
    def later(self) -> str:
        return with_argument(self.call, self.argument, "cache")

    def pieces(self, subject: Subject, inputs: Inputs, ends: tuple[int, ...]) -> Tensor:
        """The outputs of all positions, piece by piece."""
        module, kind = _Module(subject.module), subject.convention.kind
        parts = []
        for start, end in pairwise((0, *ends)):
            piece = tuple(each[:, 0 if self.whole else start : end] for each in inputs)
            call = self.later.replace("=cache", "=m.cache") if start else self.call
            output = run_raw(call, module, kind, piece, None, True)
            module.cache = eval(f"output{self.place}", {"output": output})
            parts.append(first_tensor(output)[:, start - end :])
        return torch.cat(parts, 1)

    def program(self, subject: Subject, ends: tuple[int, ...]) -> Iterator[str]:
        """Lines that print how far the pieces differ from one pass."""
        name = NAMES[subject.convention.kind][0]
        yield from drawing(subject, 2, ends[-1])
        yield f"all, a, parts, cache, start = {name}, {subject.convention.plain}, [], None, 0"
        yield f"for end in {ends}:"
        yield f"    {name} = all[:, {'0' if self.whole else 'start'}:end]"
        yield f"    o = {self.later} if start else {self.call}"
        output = "o.logits" if str(subject.convention.plain).endswith(".logits") else "o[0]"
        yield f"    cache = o{self.place}; parts.append({output}[:, start - end:]); start = end"
        yield "print((torch.cat(parts, 1) - a).abs().max() / a.std())"


class _Module:
    """A module with the cache of the call before it, under the one name that calls know."""

    def __init__(self, module: Any):
        self.module, self.cache = module, None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.module(*arguments, **options)


def decoding(subject: Subject, claims: bool) -> Iterator[Finding]:
    """One token at a time, and two pieces, give what one pass gives."""
    found = protocol(subject) if claims else None
    if found is None:
        text = "no cache found"
        yield Finding(name="decoding", verdict="note" if claims else "n.a.", text=text)
        return
    length = min(LENGTH, subject.convention.length)
    # libraries differ in what they want beside a cache: the first new token tells
    once, again = (PREFILL, PREFILL + 1), replace(found, whole=True)
    if _compared(found, subject, once)[0] > ALLOWED >= _compared(again, subject, once)[0]:
        found = again
    single = (PREFILL, *range(PREFILL + 1, length + 1))
    yield _judged("decoding", "token by token", _compared(found, subject, single), found, subject, single)
    pieces = (5, PREFILL, length)
    yield _judged("pieces", "prefill in pieces", _compared(found, subject, pieces), found, subject, pieces)


def _compared(found: Protocol, subject: Subject, ends: tuple[int, ...]) -> tuple[float, str]:
    """How far pieces differ from one pass, or endless and what was raised."""
    inputs = subject.draw(2, ends[-1])
    try:
        with torch.no_grad():
            whole = subject(inputs, None, True)
            size = float((found.pieces(subject, inputs, ends) - whole).abs().max() / whole.std())
    except Exception as error:
        return torch.inf, f"raises {type(error).__name__}: {' '.join(str(error).split())[:80]}"
    return size, ""


def _judged(
    name: str, way: str, result: tuple[float, str], found: Protocol, subject: Subject, ends: tuple[int, ...]
) -> Finding:
    size, refusal = result
    if refusal:
        return Finding(name=name, verdict="note", text=f"{way} {refusal}")
    if size <= ALLOWED:
        return Finding(name=name, verdict="ok", size=size)
    text = f"{way} differs from one pass by {size:.2g}"
    return Finding(name=name, verdict="fails", size=size, text=text, program=tuple(found.program(subject, ends)))


def protocol(subject: Subject) -> Protocol | None:
    """The cache of a module, from its arguments and one trial; None where there is none."""
    names = parameters_of(subject.module)
    kind = subject.convention.kind
    plain = str(subject.convention.call(padded=False, causal=True))
    if kind == "qkv" or plain.startswith("<"):
        return None
    switch = next((name for name in SWITCHES if name in names or f"{name}=" in plain), "")
    # without what takes the tensor out of the output
    call = plain[: plain.rindex(")") + 1]
    call = with_argument(call, switch, "True") if switch else call
    inputs = subject.draw(1, 8)
    for argument in (name for name in CACHES if name in names):
        try:
            with torch.no_grad():
                output = run_raw(call, deepcopy(subject.module), kind, inputs, None, True)
        except REFUSALS:
            continue
        if getattr(output, argument, None) is not None:
            return Protocol(call, argument, f".{argument}")
        if isinstance(output, tuple) and len(output) == 2 and output[1] is not None:
            return Protocol(call, argument, "[1]")
    return None
