"""Models of transformers whose attention is code of their own: none of our names reaches them, so they are refused.

transformers takes any registered name for any model. A module that never asks the attention interface then goes on as
before, and what is measured is the model's own softmax. What a class asks for is read from the names in its code.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from inspect import unwrap
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..contract import Unsupported

PREFIX = "attnbench "
"""The beginning of every name that is registered here."""

_building: list[None] = []


@functools.cache
def asks_interface(kind: Any) -> bool:
    """True if modules of this class attend by the function that the config names."""
    return "ALL_ATTENTION_FUNCTIONS" in _names(kind)


@functools.cache
def is_own_attention(kind: Any) -> bool:
    """True if modules of this class attend by code of their own."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    # a router over experts takes a softmax too
    attends = "attention" in kind.__name__.lower()
    return attends and not asks_interface(kind) and bool({"softmax", "scaled_dot_product_attention"} & _names(kind))


def _names(kind: type[nn.Module]) -> set[str]:
    """Names in the code of the class, and in that of its bases up to those of every model."""
    own = [each for each in kind.__mro__ if each not in PreTrainedModel.__mro__]
    members = (unwrap(member) for each in own for member in vars(each).values() if isinstance(member, FunctionType))
    return {name for member in members for name in member.__code__.co_names}


def own_attention(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that attend by code of their own."""
    return [module for module in model.modules() if is_own_attention(type(module))]  # type: ignore[arg-type]


def check_interface(model: nn.Module) -> None:
    """Raises Unsupported for a model that no name changes, and warns of what stays as it is in any other."""
    own = ", ".join(sorted({type(module).__name__ for module in own_attention(model)}))
    if not any(asks_interface(type(module)) for module in model.modules()):  # type: ignore[arg-type]
        raise Unsupported(
            f"{type(model).__name__} does not attend through the interface of transformers"
            + (f": {own} computes its own attention" if own else "")
            + "; it would stay as it is, so use attn_implementation='eager'"
        )
    if own:
        warnings.warn(
            f"{own} in {type(model).__name__} computes its own attention, and stays as it is", UserWarning, stacklevel=3
        )


def refuse_own_attention() -> None:
    """Makes transformers raise Unsupported where it would take one of our names and change nothing; called once.

    At import: `model.set_attn_implementation(register(...))` looks the method up before `register` runs.
    """
    set_name, build, load = (
        PreTrainedModel.set_attn_implementation,
        PreTrainedModel._from_config.__func__,  # type: ignore[attr-defined]
        PreTrainedModel.from_pretrained.__func__,  # type: ignore[attr-defined]
    )

    @functools.wraps(set_name)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **more: Any) -> None:
        if _is_ours(attn_implementation):
            check_interface(self)
        set_name(self, attn_implementation, *args, **more)

    def checked(make: Callable[..., Any]) -> Any:
        @functools.wraps(make)
        def made(cls: type[Any], *args: Any, **more: Any) -> Any:
            _building.append(None)
            try:
                model = make(cls, *args, **more)
            except KeyError as error:
                # of a class that looks its attention up in a table of its own
                if not _is_ours(error.args[0]):
                    raise
                raise Unsupported(f"{cls.__name__} does not attend through the interface of transformers") from error
            finally:
                _building.pop()
            # the parts of a model are made by these functions too: a part may lack attention, the whole may not
            whole = model[0] if isinstance(model, tuple) else model
            parts = (part for part in whole.modules() if isinstance(part, PreTrainedModel))
            if not _building and any(_is_ours(part.config._attn_implementation) for part in parts):
                check_interface(whole)
            return model

        return classmethod(made)

    kind: Any = PreTrainedModel
    kind.set_attn_implementation = set_attn_implementation
    kind._from_config, kind.from_pretrained = checked(build), checked(load)


def _is_ours(name: Any) -> bool:
    names = name.values() if isinstance(name, dict) else [name]
    return any(isinstance(each, str) and each.startswith(PREFIX) for each in names)


refuse_own_attention()
