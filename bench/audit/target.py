"""Target: a module or function by name, `mine.py:MyAttention[dim=64]`, imported and built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.errors import SelectionError
from ..core.spec import Spec
from ..core.targets import target_of
from .tiny import tiny_model

USUAL: dict[str, Any] = {
    **dict.fromkeys(("dim", "d_model", "embed_dim", "hidden_size", "hidden_dim", "n_embd"), 64),
    **dict.fromkeys(("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "dim_head"), 16),
    **dict.fromkeys(("depth", "num_layers", "n_layers", "n_layer", "layers"), 2),
    **dict.fromkeys(("vocab_size", "num_tokens"), 99),
    **dict.fromkeys(("max_seq_len", "max_len", "block_size", "context_length", "seq_len"), 128),
    **dict.fromkeys(("window", "window_size", "bucket_size"), 16),
    "dropout": 0.1,
}
"""Values of arguments that a constructor requires and nobody gave."""


@dataclass(frozen=True, slots=True)
class Built:
    """A built module or function. lines: plain torch that builds the same as `m`. call: as the Spec gives it, or ""."""

    module: Any
    lines: tuple[str, ...]
    call: str = ""


def load_target(spec: Spec) -> Built:
    """What `spec` names: a class, an instance, a function over tensors, or a function that returns a module.

    Raises SelectionError where the file or the name is missing, or the constructor asks for more than was given.
    """
    values = dict(spec.parameters)
    call = str(values.pop("call", ""))
    return replace(_loaded(spec, values), call=call)


def _loaded(spec: Spec, values: dict[str, Any]) -> Built:
    place, colon, name = spec.name.rpartition(":")
    if not colon:
        raise SelectionError(f"expected FILE.py:NAME or package.module:NAME, got {spec.name!r}")
    if place == "transformers":
        return Built(*tiny_model(name, values))
    target = target_of(spec.name)
    assert target is not None
    try:
        found = target.load()
    except AttributeError:
        raise SelectionError(f"expected a name of {place}, got {name!r}") from None
    except ImportError as error:
        raise SelectionError(f"expected a module that can be imported, got {place!r}: {error}") from error
    head = name.split(".")[0]
    lines: tuple[str, ...] = (f"from {place} import {head}",)
    if place.endswith(".py"):
        lines = (
            f"import sys; sys.path.insert(0, {str(Path(place).parent)!r})",
            f"from {Path(place).stem} import {head}",
        )
    if isinstance(found, nn.Module):
        return Built(found.eval(), (*lines, f"m = {name}.eval()"))
    is_plain = not isinstance(found, type) and not _makes(found)
    if is_plain:
        inside = "".join(f", {key}={value!r}" for key, value in values.items())
        made = partial(found, **values) if values else found
        return Built(
            made, (*lines, f"import functools; m = functools.partial({name}{inside})" if values else f"m = {name}")
        )
    values = _completed(found, values, spec)
    torch.manual_seed(0)
    built = found(**values)
    inside = ", ".join(f"{key}={value!r}" for key, value in values.items())
    ending = ".eval()" if isinstance(built, nn.Module) else ""
    return Built(built.eval() if ending else built, (*lines, f"torch.manual_seed(0); m = {name}({inside}){ending}"))


def _makes(function: Callable[..., Any]) -> bool:
    """Whether a function returns a module: nothing that it requires could be a tensor."""
    try:
        required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return False
    return all(each.name in USUAL or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in required)


def _completed(found: Callable[..., Any], values: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """The arguments of a constructor, with usual values where it requires what nobody gave."""
    parameters = inspect.signature(found).parameters
    required = [
        name for name, each in parameters.items()
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]  # fmt: skip
    missing = [name for name in required if name not in values and name not in USUAL]
    if missing:
        raise SelectionError(
            f"which value has {missing[0]}? {spec.name} requires it: name it, as `{spec.name}[{missing[0]}=4]`, or "
            "a function of your file that returns the module"
        )
    return {name: USUAL[name] for name in required if name not in values} | values
