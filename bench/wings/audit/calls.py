"""Calls: what kind of subject is called on what, as the texts of expressions, and the call that made it."""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ....variants.contract import Mask

Kind = Literal["qkv", "layer", "model"]
Inputs = tuple[Tensor, ...]
Call = str | Callable[..., Any]

NAMES: dict[Kind, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "layer": ("x",), "model": ("ids",)}

COUNTS = "valid.sum(1)"
"""The tokens of each sequence, as an argument such as `lengths` takes them."""

_MADE_BY: dict[type, tuple[Any, dict[str, Any]]] = {}
"""What made the last module of a class, and its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """The calls of a subject. Each call is an expression; empty where the subject takes no such thing.

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

    @property
    def counts_tokens(self) -> bool:
        """True if the call takes how many tokens each sequence has, so that padding stands behind them."""
        return COUNTS in str(self.padded)

    @property
    def names(self) -> str:
        """The inputs in a program, such as `q, k, v`."""
        return ", ".join(NAMES[self.kind])

    @property
    def turned(self) -> str:
        """The text behind a call that brings its output into the order (batch, positions, …)."""
        return ".transpose(1, 2)" if self.kind == "qkv" else ""

    def __str__(self) -> str:
        kinds = {"qkv": "a function of query, key and value", "layer": "a layer", "model": "a model"}
        calls = {"call": self.plain, "padding": self.padded, "causal": self.causal}
        said = [f"{name} {call if isinstance(call, str) else '(given)'}" for name, call in calls.items() if call]
        shapes = {"qkv": "(B, {}, N, {})", "layer": "(B, N, {})", "model": "ids (B, N) below {}"}
        return f"{kinds[self.kind]} {shapes[self.kind].format(*self.shape)}: {' · '.join(said)}"


def called(call: Call, module: Any, kind: Kind, inputs: Inputs, mask: Mask, seen: int = 0, cache: Any = None) -> Any:
    """The result of one call as it is. seen: positions before the inputs, which `cache` holds for `decoding.py`.

    A call names them `start`. Only what the call names is computed of the mask.
    """
    queries, keys = inputs[0], inputs[-2] if kind == "qkv" else inputs[0]
    axis = 2 if kind == "qkv" else 1
    if not isinstance(call, str):
        takes_valid = len(inspect.signature(call).parameters) > 1 + len(inputs)
        valid = [_masks({"valid"}, queries, 0, keys.shape[axis], mask)["valid"]] if takes_valid else []
        return call(module, *inputs, *valid)
    code = _compiled(call)
    names = _masks(set(code.co_names), queries, queries.shape[axis], keys.shape[axis] + seen, mask)
    inside = {"torch": torch, "m": module, "cache": cache, "start": seen, **dict(zip(NAMES[kind], inputs, strict=True))}
    return eval(code, inside | names)


class Watched:
    """A module whose calls note which of their arguments they have changed in place; else it is as it was."""

    def __init__(self, module: Any):
        self.module, self.changed = module, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {str(at): each for at, each in enumerate(args)} | kwargs
        # torch counts what is written into a tensor
        before = {name: each._version for name, each in given.items() if isinstance(each, Tensor)}
        found = self.module(*args, **kwargs)
        self.changed = [name for name, version in before.items() if given[name]._version != version]
        return found


@functools.cache
def _compiled(call: str) -> CodeType:
    return compile(call, "call", "eval")


def _masks(wanted: set[str], like: Tensor, queries: int, keys: int, mask: Mask) -> dict[str, Any]:
    """The names of the mask that a call may use, and `positions` (1, queries) of the inputs; only what it does name.

    `rotary` of a head's size makes the table of these positions: cosines and sines (1, queries, size).
    """
    found: dict[str, Any] = {"causal": mask.causal}
    batch, device = like.shape[0], like.device
    if wanted & {"positions", "rotary"}:
        found["positions"] = positions = torch.arange(keys - queries, keys, device=device)[None]
        found["rotary"] = lambda size: rotary(positions, size, like.dtype)
    if "valid" in wanted:
        valid = torch.ones(batch, keys, dtype=torch.bool, device=device)
        found["valid"] = valid if mask.valid is None else mask.valid
    if "seen" in wanted:
        seen = Mask(causal=mask.causal).allowed(queries, keys, device)
        every = torch.ones(queries, keys, dtype=torch.bool, device=device)
        found["seen"] = every if seen is None else seen[0, 0]
    if wanted & {"pairs", "bias"}:
        allowed = mask.allowed(queries, keys, device)
        pairs = torch.ones(1, dtype=torch.bool, device=device) if allowed is None else allowed
        found["pairs"] = pairs = pairs.expand(batch, 1, queries, keys)
        dtype = like.dtype if like.is_floating_point() else torch.float32
        bias = torch.zeros(pairs.shape, dtype=dtype, device=device)
        found["bias"] = bias.masked_fill(~pairs, torch.finfo(dtype).min)
    return found


def rotary(positions: Tensor, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (1, positions, size) of rotary positions at base 10,000, whose two halves are the same."""
    rates = 10000.0 ** -(torch.arange(0, size, 2, device=positions.device) / size)
    angles = positions[..., None] * torch.cat((rates, rates))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def constructed(target: Any, given: dict[str, Any]) -> Any:
    """The module that a class or function makes of these arguments, which are kept for `remade`."""
    module = target(**given)
    _MADE_BY[type(module)] = target, given
    return module


def set_rate(module: nn.Module, rate: float) -> bool:
    """Sets every rate of dropout that a module or its settings hold as a number; False where they hold none."""
    found, holders = False, [vars(each) for each in module.modules()]
    settings = [each.get(name) for each in holders for name in ("config", "cfg", "args")]
    holders += [vars(each) for each in settings if isinstance(getattr(each, "__dict__", None), dict)]
    for each in holders:
        for name, value in each.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
            if number and ("drop" in name or (name in ("p", "rate") and isinstance(value, float))):
                each[name], found = rate, True
    return found


def remade(subject: Any, rate: float) -> Any:
    """The module of a subject as its constructor makes it with another rate of dropout, and with the same weights.

    None where it takes no rate, or does not make the same again. Arguments that nobody noted are the attributes of the
    same name, or their defaults.
    """
    module, inputs = subject.module, subject.draw()
    values = _made_with(module)[1]
    rates = {name: rate for name, each in values.items() if "drop" in name and type(each) in (int, float)}
    with suppress(Exception):
        again, found = constructed_anew(module, *({}, rates) if rates else ())
        for each in (again, found):
            each.load_state_dict(module.state_dict())
        one, other = (subject.with_module(copy.deepcopy(each).eval()).outputs(inputs) for each in (module, again))
        return found if torch.equal(one, other) else None
    return None


def constructed_anew(module: nn.Module, *changes: dict[str, Any]) -> list[nn.Module]:
    """A module for each of `changes`, made as this one was but for these arguments; raises where it cannot be."""
    make, values = _made_with(module)
    return [make(**values | more) for more in changes]


def _made_with(module: nn.Module) -> tuple[Any, dict[str, Any]]:
    """The class or function that makes such a module, and its arguments: as noted, else attributes or defaults."""
    make, given = _MADE_BY.get(type(module), (type(module), {}))
    return make, {name: vars(module).get(name, each.default) for name, each in accepted_by(make).items()} | given


def accepted_by(target: Any) -> dict[str, inspect.Parameter]:
    """The arguments by which a module is made."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    try:
        found = [*inspect.signature(target).parameters.items()]
        told = typing.get_overloads(making(target))
        if told and all(parameter.kind in skipped for _, parameter in found):
            # as torch.nn.GRU has it; the first is the module itself
            found = [*inspect.signature(told[0]).parameters.items()][1:]
    except (AttributeError, TypeError, ValueError):
        return {}
    return {name: parameter for name, parameter in found if parameter.kind not in skipped}


def making(target: Any) -> Any:
    """The object that holds the annotations of a class or function."""
    return vars(target).get("__init__", target) if isinstance(target, type) else target
