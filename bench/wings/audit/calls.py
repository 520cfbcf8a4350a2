"""Calls: what kind of subject is called on what, as the texts of expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Kind = Literal["qkv", "layer", "model"]
Inputs = tuple[Tensor, ...]
Call = str | Callable[..., Any]

NAMES: dict[Kind, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "layer": ("x",), "model": ("ids",)}


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
