"""The facts about foreign code in a child, as an audit asks them from outside."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import msgspec
from torch import nn

from ...core.decode import Text, brief
from ...run.link import Away, Link, Name, Size
from .calls import Kind


class Argument(msgspec.Struct, frozen=True):
    """One argument of the call of a module. default: as far as a test asks for it."""

    name: Name
    kind: Annotated[int, msgspec.Meta(ge=0, le=4)]
    default: Literal["required", "none", "pair", "other"]

    @classmethod
    def of(cls, name: str, told: inspect.Parameter) -> Argument:
        known: dict[Any, Any] = {inspect.Parameter.empty: "required", None: "none"}
        default: Any = "pair" if isinstance(told.default, tuple) else "other"
        if told.default is None or told.default is inspect.Parameter.empty:
            default = known[told.default]
        return cls(name, int(told.kind), default)

    @property
    def parameter(self) -> inspect.Parameter:
        defaults = {"required": inspect.Parameter.empty, "none": None, "pair": (), "other": ...}
        kinds: Any = type(inspect.Parameter.VAR_KEYWORD)
        return inspect.Parameter(self.name, kinds(self.kind), default=defaults[self.default])


class ForeignFacts(msgspec.Struct, frozen=True):
    """A child's description of the code, without a test. question: why no call was found, else empty.

    number, pristine: of the module in the child, and of a copy that no call has met.
    """

    number: int
    pristine: int
    is_module: bool
    arguments: tuple[Argument, ...]
    says_causal: bool
    of_transformers: bool
    lines: tuple[Text, ...]
    changes: tuple[Name, ...]
    call: Text
    question: Text = ""
    kind: Kind = "layer"
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=2)] = ()
    length: Size = 0
    plain: Text = ""


def opened(link: Link, facts: ForeignFacts) -> Away:
    """The module that the facts are about, as an audit takes it; ends the link where they are nonsense."""
    try:
        [each.parameter for each in facts.arguments]
    except ValueError as error:
        link.lose(f"returned a value of the wrong type: {brief(error)}")
    link.facts, link.pristine = facts, Away(link, facts.pristine)
    return Away(link, facts.number)


def is_module(target: Any) -> bool:
    return target.facts.is_module if isinstance(target, Away) else isinstance(target, nn.Module)
