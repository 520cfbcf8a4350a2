"""Calls: what kind of subject is called on what, as the texts of expressions, and the call that made it."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal["qkv", "layer", "model"]
Inputs = tuple[Tensor, ...]
Call = str | Callable[..., Any]

NAMES: dict[Kind, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "layer": ("x",), "model": ("ids",)}

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


def constructed(target: Any, given: dict[str, Any]) -> Any:
    """What a class or function makes of these arguments, which are kept for `remade`."""
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
    make, given = _MADE_BY.get(type(module), (type(module), {}))
    values = {name: vars(module).get(name, each.default) for name, each in accepted_by(make).items()} | given
    rates = {name: rate for name, each in values.items() if "drop" in name and type(each) in (int, float)}
    with suppress(Exception):
        again, found = (make(**values | more) for more in ({}, rates) if rates)
        for each in (again, found):
            each.load_state_dict(module.state_dict())
        one, other = (subject.with_module(copy.deepcopy(each).eval()).outputs(inputs) for each in (module, again))
        return found if torch.equal(one, other) else None
    return None


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
    """What holds the annotations of a class or function."""
    return vars(target).get("__init__", target) if isinstance(target, type) else target
