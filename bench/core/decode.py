"""Typed values from JSON and TOML, and back: the one place where data from outside becomes dataclasses.

A field of another type than declared, a missing field and an unknown key are refused, with the place where they stand.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from .errors import AttnbenchError, SelectionError, StoreError
from .spec import Spec

T = TypeVar("T")


def parse_json(text: bytes) -> Any:
    """The value of a JSON text, in which Python's NaN and Infinity may stand; raises StoreError for anything else."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        # the slower reader of the standard library also knows NaN, Infinity, lone surrogates and integers of any size
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"it is not JSON: {error}") from None


def convert(kind: type[T], values: Any, what: str, error: type[AttnbenchError] = StoreError) -> T:
    """`values`, as JSON or TOML hold them, as an instance of the dataclass `kind`.

    Raises `error` where they are none: "not WHAT: Expected `int`, got `str` - at `$.seeds`".
    """
    try:
        found = msgspec.convert(values, kind, dec_hook=decode_hook)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise error(f"not {what}: {problem}") from None
    # msgspec refuses unknown keys of its own structures, and lets those of dataclasses pass
    if place := _unknown_key(kind, values):
        raise error(f"not {what}: it has no key `${place}`")
    return found


def to_builtins(value: Any) -> Any:
    """Dataclasses as dictionaries in the order of their fields, Specs as text: what `convert` reads back."""
    return msgspec.to_builtins(value, enc_hook=encode_hook)


def decode_hook(kind: type[Any], value: Any) -> Any:
    """How msgspec reads the types that it does not know; raises ValueError where `value` is no text for one."""
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return _parse_spec(value) if kind is Spec else kind(value)


def encode_hook(value: Any) -> Any:
    """How msgspec writes the types that it does not know; raises NotImplementedError for any but ours and NumPy's."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Spec | Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


@lru_cache(maxsize=4096)
def _parse_spec(text: str) -> Spec:
    try:
        return Spec.parse(text)
    except SelectionError as error:
        raise ValueError(str(error)) from None


def _unknown_key(kind: Any, values: Any) -> str:
    """The place of a key that no field of `kind` answers to, such as `.machine.color`; empty where there is none."""
    if isinstance(values, dict):
        names, parts = _fields(kind)
        if not values.keys() <= names:
            return f".{min(values.keys() - names)}"
        for name, part in parts.items():
            if place := _unknown_key(part, values.get(name)):
                return f".{name}{place}"
    elif isinstance(values, list):
        for at, each in enumerate(values):
            if place := _unknown_key(kind, each):
                return f"[{at}]{place}"
    return ""


@cache
def _fields(kind: Any) -> tuple[frozenset[str], dict[str, Any]]:
    """The names of a dataclass's fields; and of those that hold a dataclass, alone, in a tuple or optionally, which."""
    hints = get_type_hints(kind)
    parts = {name: part for name, hint in hints.items() for part in (hint, *get_args(hint)) if is_dataclass(part)}
    return frozenset(field.name for field in fields(kind)), parts
