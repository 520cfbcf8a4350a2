"""The wire form between a process and its child: one JSON object a line, whichever way it goes."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from ..core.decode import decode_hook, encode_hook, without_surrogates

MOST_LINE_BYTES = 64 * 2**20
"""A child that writes a longer line writes nonsense."""

MOST_CHARACTERS = 2_000
"""Of a message for a person: what compilers and plugins say may have millions."""


class _Order(msgspec.Struct, frozen=True):
    """A dataclass by the module and the name of its class."""

    module: str
    name: str
    fields: msgspec.Raw


def encode_line(message: Any) -> bytes:
    """One line, its end included; Specs and paths become text."""
    try:
        return msgspec.json.encode(message, enc_hook=encode_hook) + b"\n"
    except UnicodeEncodeError:
        # a message may name a file whose name is no Unicode
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(message, enc_hook=encode_hook))) + b"\n"


def decode_line(line: bytes, kind: Any) -> Any:
    """Raises msgspec.DecodeError, a ValueError or RecursionError for a line that is no `kind`."""
    return msgspec.json.decode(line, type=kind, dec_hook=decode_hook)


def encode_order(order: Any) -> bytes:
    """What a child is to do: a frozen dataclass at the top level of a module of attnbench."""
    kind = type(order)
    return encode_line(_Order(kind.__module__, kind.__qualname__, msgspec.Raw(encode_line(order)[:-1])))


def decode_order(line: bytes) -> Any:
    """In the child, whose parent sent the name of the class."""
    found = decode_line(line, _Order)
    return decode_line(found.fields, getattr(importlib.import_module(found.module), found.name))
