"""Target: a module or function by name, `mine.py:MyAttention[dim=64]`, imported and built.

A class or function that makes a module gets what its arguments are named after from a shape, unless a person gives it:
`mine.py:MyAttention[heads=4]`. The settings of a model under one argument, `config`, are made likewise.
"""

from __future__ import annotations

import copy
import math
import sys
import typing
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....variants.contract import AttentionShape, Variant
from ...core.errors import SelectionError, Unsupported
from ...core.registry import importing
from ...core.spec import Spec
from ...core.targets import said_in, target_of
from .calls import accepted_by, constructed, making
from .search import parameters_of
from .tiny import tiny_model

OF_THE_SHAPE: dict[str, tuple[str, ...]] = {
    "hidden_width": (
        "dim", "d_model", "embed_dim", "hidden_size", "n_embd", "n_embed", "hidden_dim", "width", "model_dim",
        "dim_model", "emb_dim", "embedding_dim", "in_features", "input_size", "channels", "num_channels", "n_channels",
    ),
    "heads": ("heads", "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_head", "num_attention_heads"),
    "head_dim": ("head_dim", "dim_head", "d_head", "headdim"),
    "max_length": (
        "max_length", "max_len", "max_seq_len", "max_seqlen", "seq_len", "sequence_length", "block_size",
        "max_position_embeddings", "context_length", "n_ctx",
    ),
    "causal": ("causal", "is_causal"),
    "dropout": ("dropout", "attn_dropout", "attention_dropout", "attn_drop", "attn_pdrop", "dropout_p", "dropout_rate"),
    "layer": ("layer_idx", "layer_index", "layer_id"),
}  # fmt: skip
"""Attributes of an AttentionShape, with the arguments of constructors that are named after them."""

NEEDED_OF_THE_SHAPE = {"heads": ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads")}
"""The same where an argument has no default: otherwise the number of key heads is the author's choice."""

CONFIGS = ("config", "cfg", "args", "params", "conf")
"""An argument that holds all others as attributes."""

STATES = ("x", "hidden_states", "hidden", "states", "inputs", "input")
"""First arguments of a function that is a layer itself, and none that makes one."""

ATTRIBUTE = {name: attribute for attribute, names in OF_THE_SHAPE.items() for name in names}
NEEDED = ATTRIBUTE | {name: attribute for attribute, names in NEEDED_OF_THE_SHAPE.items() for name in names}

SMALL = AttentionShape(heads=4, head_dim=16, max_length=128, causal=True, dropout=0.1)
"""The shape whose sizes an audit gives to arguments that a constructor requires and nobody gave."""

USUAL: dict[str, Any] = {
    **dict.fromkeys(("depth", "num_layers", "n_layers", "n_layer", "layers"), 2),
    **dict.fromkeys(("vocab_size", "num_tokens"), 99),
    **dict.fromkeys(("window", "window_size", "bucket_size"), 16),
}
"""The same of what no shape of attention has."""


CHANGES = {"m = m._orig_mod": "without its torch.compile", "m = m.float()": "its parameters in float32"}
"""Changes that `as_tested` may make, in words."""


@dataclass(frozen=True, slots=True)
class Built:
    """A built module or function. lines: plain torch that builds the same as `m`. call: as the Spec gives it, or ""."""

    module: Any
    lines: tuple[str, ...]
    call: str = ""


def load_target(spec: Spec) -> Built:
    """Load what `spec` names: a class, an instance, a function over tensors, or a function that returns a module.

    Raises SelectionError where the file or the name is missing, or the constructor asks for more than was given.
    """
    values = dict(spec.parameters)
    call = str(values.pop("call", ""))
    return replace(_loaded(spec, values), call=call)


def _loaded(spec: Spec, values: dict[str, Any]) -> Built:
    place, colon, name = spec.name.rpartition(":")
    if not colon:
        raise SelectionError(f"expected FILE.py:NAME or package.module:NAME, got {spec.name!r}{said_in(spec.name)}")
    if place == "transformers":
        return Built(*tiny_model(name, values))
    target = target_of(spec.name)
    assert target is not None
    try:
        with importing():
            found = target.load()
    except AttributeError:
        raise SelectionError(f"expected a name of {place}, got {name!r}") from None
    except ImportError as error:
        raise SelectionError(f"{place} does not load: {error}; install what it imports, or mend it") from error
    if isinstance(found, type) and issubclass(found, Variant):
        raise SelectionError(f"{spec.name} is a variant of the contract, which `attnbench check {spec.name}` tests")
    head = name.split(".")[0]
    folder = (f"import sys; sys.path.insert(0, {str(Path(place).parent)!r})",) if place.endswith(".py") else ()
    home = Path(place).stem if folder else place
    if isinstance(found, nn.Module):
        return Built(found.eval(), (*folder, f"from {home} import {head}", f"m = {name}.eval()"))
    if not makes(found):
        inside = "".join(f", {key}={value!r}" for key, value in values.items())
        text = f"import functools; m = functools.partial({name}{inside})" if values else f"m = {name}"
        return Built(partial(found, **values) if values else found, (*folder, f"from {home} import {head}", text))
    torch.manual_seed(0)
    built, arguments = made(found, spec.name, SMALL, values, usual=USUAL)
    inside = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    imports = [f"from {home} import {head}"]
    for each in (each for each in arguments.values() if isinstance(each, Settings)):
        own = each.kind.__module__ == found.__module__
        imports.append(f"from {home if own else each.kind.__module__} import {each.kind.__qualname__}")
    ending = ".eval()" if isinstance(built, nn.Module) else ""
    lines = (*folder, *imports, f"torch.manual_seed(0); m = {name}({inside}){ending}")
    return Built(built.eval() if ending else built, lines)


def made(
    target: Any, name: str, shape: AttentionShape, given: dict[str, Any], *, usual: dict[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """The module or function of a target, and the arguments that it was made with.

    usual: values of more arguments; with it, only what a constructor requires is given. Raises SelectionError for an
    argument that nothing tells, and Unsupported for a number of key heads that does not divide the heads.
    """
    if isinstance(target, nn.Module):
        return copy.deepcopy(target), {}
    if not callable(target):
        raise SelectionError(f"expected {name} to be a class, a function or an nn.Module, got {type(target).__name__}")
    if not makes(target):
        return target, {}
    arguments = _arguments(target, name, shape, given, usual)
    try:
        given = {key: each.made if isinstance(each, Settings) else each for key, each in arguments.items()}
        module = constructed(target, given)
    except AttributeError as error:
        if factory(name) not in str(error):
            raise
        raise SelectionError(str(error)) from error
    if not callable(module):
        raise SelectionError(f"expected {name} to make a module, got {type(module).__name__}")
    return module, arguments


def _arguments(
    target: Any, name: str, shape: AttentionShape, given: dict[str, Any], usual: dict[str, Any] | None
) -> dict[str, Any]:
    accepted = accepted_by(target)
    given = {own_name(accepted, key): value for key, value in given.items()}
    holders = [each for each, p in accepted.items() if each in CONFIGS and p.default is p.empty and each not in given]
    kinds = {each: kind_of_settings(target, each) for each in holders}
    fields = {each: {key: v for key, v in given.items() if key in accepted_by(kinds[each])} for each in holders}
    arguments = {key: value for key, value in given.items() if not any(key in known for known in fields.values())}
    for each, parameter in accepted.items():
        required = parameter.default is parameter.empty
        attribute = (NEEDED if required else {} if usual is not None else ATTRIBUTE).get(each)
        if each == "block_size" and isinstance(parameter.default, int) and parameter.default < SMALL.max_length:
            # of a block of keys, and not all positions as in GPT
            attribute = None
        groups = given.get(each, parameter.default) if each in NEEDED_OF_THE_SHAPE["heads"] else None
        if each not in given and attribute:
            arguments[each] = getattr(shape, attribute)
        elif usual is None and isinstance(groups, int) and groups > 0 and shape.heads % groups:
            # some tasks have models of one head; a default of key heads is for more
            if each in given:
                raise Unsupported(f"it has {groups} key heads, which do not divide the {shape.heads} heads here")
            arguments[each] = math.gcd(groups, shape.heads)
        elif each in holders:
            arguments[each] = Settings.of(kinds[each], name, shape, fields[each])
        elif each not in given and required and usual is not None and each in usual:
            arguments[each] = usual[each]
        elif each not in given and required:
            raise SelectionError(
                f"{name} needs {each!r}, which nothing tells; say it: {name}[{each}=…], or {factory(name)}"
            )
    return arguments


def own_name(accepted: Collection[str], name: str) -> str:
    """The name that a constructor has for what `name` means: `num_heads` where it is asked for `heads`."""
    same = [each for each in accepted if name in ATTRIBUTE and ATTRIBUTE.get(each) == ATTRIBUTE[name]]
    return same[0] if name not in accepted and len(same) == 1 else name


def factory(name: str) -> str:
    """The advice to name a function of two lines, which says what no parameter says."""
    place, _, attribute = name.rpartition(":")
    return (
        f"name a function of {place if place.endswith('.py') else 'a file'}, "
        f"`def mine(dim, heads): return {attribute}(…)`"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a model, as `kind` makes them of `values`."""

    kind: Any
    values: dict[str, Any]
    made: Any

    @classmethod
    def of(cls, kind: Any, name: str, shape: AttentionShape, given: dict[str, Any]) -> Settings:
        if kind is _Named:
            found = _Named(name, shape)
            return cls(kind, found.read, found)
        values = _arguments(kind, f"{name}'s {kind.__name__}", shape, given, None)
        return cls(kind, values, kind(**values))

    def __repr__(self) -> str:
        return f"{self.kind.__qualname__}({', '.join(f'{key}={value!r}' for key, value in self.values.items())})"


class _Named:
    """Settings of no class that is known, under whatever names of a shape a layer reads them."""

    def __init__(self, name: str, shape: AttentionShape, /):
        self.read: dict[str, Any] = {}
        self._name, self._shape = name, shape

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (name not in NEEDED and name != "bias"):
            raise AttributeError(f"{self._name} reads config.{name}, which nothing tells; {factory(self._name)}")
        self.read[name] = getattr(self._shape, NEEDED[name]) if name in NEEDED else True
        return self.read[name]


_Named.__module__, _Named.__qualname__ = "types", "SimpleNamespace"


def kind_of_settings(target: Any, argument: str) -> Any:
    """The class of a config: as annotated, or the one of the same file that is called so."""
    told = hints_of(target).get(argument)
    home = vars(sys.modules.get(target.__module__, object)) if hasattr(target, "__module__") else {}
    named = [each for key, each in home.items() if isinstance(each, type) and key.endswith(("Config", "Args"))]
    if isinstance(told, type) and told.__module__ != "builtins" and accepted_by(told):
        return told
    return named[0] if len(named) == 1 and accepted_by(named[0]) else _Named


def hints_of(target: Any) -> dict[str, Any]:
    """The annotations of what makes a module; none where one names what is imported for type checkers alone."""
    try:
        return typing.get_type_hints(making(target))
    except Exception:
        # an annotation may be any expression
        return {}


def makes(target: Any) -> bool:
    """True for a class, and for a function that takes no tensors: a call of it makes the module."""
    if isinstance(target, nn.Module):
        return False
    names = list(parameters_of(target))
    takes_tensors = [name[:1] for name in names[:3]] == ["q", "k", "v"] or (names[:1] and names[0] in STATES)
    return isinstance(target, type) or not takes_tensors


def as_tested(module: Any) -> tuple[Any, tuple[str, ...]]:
    """A module in float32 and as it was before torch.compile, and the lines that make it so; changes what is given.

    Raises SelectionError where its parameters have no values.
    """
    if not isinstance(module, nn.Module):
        return module, ()
    lines = []
    if isinstance(getattr(module, "_orig_mod", None), nn.Module):
        module = module._orig_mod
        lines.append("m = m._orig_mod")
    absent = [name for name, each in module.named_parameters() if each.is_meta]
    if absent:
        raise SelectionError(
            f"its parameters lie on the device meta and have no values ({', '.join(absent[:3])}); make it on the CPU"
        )
    types = {each.dtype for each in module.parameters() if each.is_floating_point()}
    if types - {torch.float32}:
        module.float()
        lines.append("m = m.float()")
    return module, tuple(lines)


def redraw_constants(module: nn.Module) -> tuple[str, ...]:
    """Draws parameters whose numbers begin alike: a gate of zeros would hide what is behind it, a norm of ones that it
    stands there twice."""
    torch.manual_seed(3)
    found = [each for each in module.parameters() if each.numel() and not bool(each.any())]
    for each in found:
        nn.init.normal_(each, std=0.2)
    alike = [each for each in module.parameters() if each.numel() > 1 and bool((each == each.flatten()[0]).all())]
    for each in alike:
        each.data.mul_(1 + 0.2 * torch.randn(each.shape))
    if not found and not alike:
        return ()
    return (
        "torch.manual_seed(3); [torch.nn.init.normal_(p, std=0.2) for p in m.parameters() if not p.any()]",
        "alike = [p.data for p in m.parameters() if p.numel() > 1 and (p == p.flatten()[0]).all()]",
        "[p.mul_(1 + 0.2 * torch.randn(p.shape)) for p in alike]",
    )
