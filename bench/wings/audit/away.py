"""Away: foreign code in a child, as the tests see it here: they send inputs, and tensors come back as plain bytes.

What compares, reduces and judges runs in a process that has never imported that code. A function under `@at_the_code`
has a subject first and runs where its module lies: here, or in the child. It returns tensors and texts, no verdict.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_type_hints

import msgspec
import torch
from torch import Tensor, nn

from ...core.decode import Text, brief, without_surrogates
from ...core.errors import AttnbenchError, PluginError, crash_text
from ...core.registry import Registry
from ...gate.result import ErrorElsewhere, error_parts
from ...process.ask import SERVICE, Reporter, Request, ask_child
from ...process.child import Child
from .calls import Convention, Kind

F = TypeVar("F", bound=Callable[..., Any])

AUDIT_PATIENCE = 10.0
"""Factor on the time that all answers of one audit may take: some layers loop over positions."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float8_e4m3fn",
        "float8_e5m2", "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
"""The types of numbers that cross, by name."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]


class Packed(msgspec.Struct, frozen=True):
    """A tensor as bytes. strides: those in memory, of what goes to the child; what is expanded is sent once."""

    dtype: _Name
    shape: tuple[_Size, ...]
    data: bytes
    strides: tuple[int, ...] | None = None

    @classmethod
    def of(cls, tensor: Tensor, *, laid: bool) -> Packed:
        tensor = tensor.detach().cpu()
        once = _once(tensor, tensor.stride()) if laid else tensor
        flat = torch.empty(once.numel(), dtype=once.dtype)
        flat.view(once.shape).copy_(once)
        data, name = flat.view(torch.uint8).numpy().tobytes(), str(tensor.dtype).removeprefix("torch.")
        return cls(name, tuple(tensor.shape), data, tuple(tensor.stride()) if laid else None)

    def tensor(self, *, laid: bool) -> Tensor:
        """Raises ValueError where the bytes are not those of such a tensor."""
        if self.dtype not in DTYPES or (self.strides is not None) is not laid or len(self.shape) > 16:
            raise ValueError(f"Expected a tensor, got one of {brief(self.dtype, 40)} {brief(self.shape, 80)}")
        dtype, strides = DTYPES[self.dtype], self.strides or ()
        shape = tuple(1 if laid and not strides[at] else size for at, size in enumerate(self.shape))
        if math.prod(shape) * dtype.itemsize != len(self.data):
            raise ValueError(f"Expected {self.dtype} {brief(self.shape, 80)}, got {len(self.data):,} bytes")
        found = torch.empty(shape, dtype=dtype)
        if self.data:
            found.flatten().view(torch.uint8).copy_(torch.frombuffer(bytearray(self.data), dtype=torch.uint8))
        return torch.empty_strided(shape, strides, dtype=dtype).copy_(found).expand(self.shape) if laid else found


def _once(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    return tensor[tuple(slice(None) if stride else slice(0, 1) for stride in strides)]


class Argument(msgspec.Struct, frozen=True):
    """One argument of the call of a module. default: as far as a test asks for it."""

    name: _Name
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
    """What the child says of the code, without a test. question: why no call was found, else empty."""

    is_module: bool
    arguments: tuple[Argument, ...]
    says_causal: bool
    of_transformers: bool
    lines: tuple[Text, ...]
    changes: tuple[_Name, ...]
    call: Text
    question: Text = ""
    kind: Kind = "layer"
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=2)] = ()
    length: _Size = 0
    plain: Text = ""


class _Returned(msgspec.Struct, frozen=True, tag="returned"):
    """An answer in msgpack. turn: of the question; another process that answers it too has the same."""

    turn: int
    value: bytes


class _RaisedThere(msgspec.Struct, frozen=True, tag="raised"):
    """What the code raised, which a test may expect."""

    turn: int
    parts: tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w{0,79}\Z")], Text, _Name]


class _Lost(BaseException):
    """The child has died, hung or answered nonsense: no test may take that for an error of the module."""

    def __init__(self, error: PluginError):
        self.error = error


_AT_THE_CODE: dict[str, Callable[..., Any]] = {}
"""The functions that a child runs, by name: no other."""

_KEPT: dict[int, Any] = {}
"""In the child: modules, and copies of them, by number."""

_SUBJECT = -1
"""The number of the class of a subject there."""


def at_the_code(function: F) -> F:
    """Runs a function, or method, of a subject where the module of the subject lies."""
    name = f"{function.__module__}.{function.__qualname__}"
    _AT_THE_CODE[name] = function

    @functools.wraps(function)
    def run(subject: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(subject.module, Away):
            return function(subject, *args, **kwargs)
        given = _signature(name).bind(subject, *args, **kwargs).arguments
        return subject.module.link.answer(subject, name, dict([*given.items()][1:]))

    return run  # type: ignore[return-value]


class Away:
    """A module in the child, by its number there."""

    def __init__(self, link: _Link, number: int):
        self.link, self.number = link, number
        weakref.finalize(self, link.dropped.append, number)

    @property
    def facts(self) -> ForeignFacts:
        return self.link.facts

    def changes(self) -> str:
        """Functions that the code has replaced in its process, in words."""
        return self.link.ask(_Changes())  # type: ignore[no-any-return]


class _Link:
    """The way to a child that holds foreign code, whose answers have one time limit together."""

    facts: ForeignFacts
    pristine: Away

    def __init__(self, child: Child, registry: Registry, name: str):
        self.child, self.registry, self.name = child, registry, name
        self.dropped: list[int] = []
        self.turn, self.began = 0, time.monotonic()

    def ask(self, request: Request[Any]) -> Any:
        """Raises _Lost for what no honest child does, and for a child that has ended."""
        try:
            return ask_child(self.child, self.registry, self.name, request, patience=AUDIT_PATIENCE, began=self.began)
        except PluginError as error:
            raise _Lost(error) from None

    def answer(self, subject: Any, name: str, given: dict[str, Any]) -> Any:
        """What the function of this name returns in the child, or raises there."""
        self.turn += 1
        dropped = tuple(self.dropped)
        del self.dropped[: len(dropped)]
        reply = self.ask(
            _Used(
                turn=self.turn, number=subject.module.number, name=name, convention=asdict(subject.convention),
                claims=subject.claims, dtype=str(subject.dtype).removeprefix("torch."), dropped=dropped,
                arguments=msgspec.msgpack.encode(given, enc_hook=self._sent),
            )
        )  # fmt: skip
        if reply.turn != self.turn:
            self.lose("answered a question that was not asked, as a second process does")
        if isinstance(reply, _RaisedThere):
            raise type(reply.parts[0], (ErrorElsewhere,), {})(reply.parts)
        try:
            found = msgspec.msgpack.decode(reply.value, type=_kinds(name)[1], dec_hook=_got)
        except (ValueError, RecursionError) as error:
            self.lose(f"returned a value of the wrong type: {brief(error)}")
        # of functions that return a module
        return Away(self, found) if isinstance(found, int) else found

    def lose(self, reason: str) -> NoReturn:
        raise _Lost(PluginError(self.registry.plugin(self.name), reason))

    def _sent(self, value: Any) -> Any:
        return Packed.of(value, laid=True) if isinstance(value, Tensor) else str(value).removeprefix("torch.")


def _got(kind: Any, value: Any) -> Tensor:
    return msgspec.convert(value, Packed).tensor(laid=False)


@contextmanager
def linked(registry: Registry, name: str, opening: Request[ForeignFacts]) -> Iterator[Away]:
    """What `opening` makes in a child of its own. Raises PluginError for a child that dies, hangs or talks nonsense."""
    try:
        with Child(SERVICE) as child:
            link = _Link(child, registry, name)
            link.facts = link.ask(opening)
            try:
                [each.parameter for each in link.facts.arguments]
            except ValueError as error:
                link.lose(f"returned a value of the wrong type: {brief(error)}")
            link.pristine = Away(link, 1)
            yield Away(link, 0)
    except _Lost as lost:
        raise lost.error from None
    except AttnbenchError:
        raise
    except Exception as error:
        # what it returned fits no step that comes before the tests, each of which catches errors of its own
        raise PluginError(registry.plugin(name), crash_text(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used(Request[_Returned | _RaisedThere]):
    """A function of _AT_THE_CODE with a subject of the module of this number. dropped: numbers that nobody needs."""

    turn: int
    number: int
    name: str
    convention: dict[str, Any]
    claims: bool
    dtype: str
    dropped: tuple[int, ...]
    arguments: bytes

    def answer(self, reporter: Reporter) -> _Returned | _RaisedThere:
        for number in self.dropped:
            _KEPT.pop(number, None)
        convention = Convention(**{**self.convention, "shape": tuple(self.convention["shape"])})
        subject = _KEPT[_SUBJECT](_KEPT[self.number], convention, self.claims, dtype=DTYPES[self.dtype])
        given = msgspec.msgpack.decode(self.arguments, type=_kinds(self.name)[0], dec_hook=_laid)
        try:
            with torch.no_grad():
                found = _AT_THE_CODE[self.name](
                    subject, **{name: getattr(given, name) for name in given.__struct_fields__}
                )
                return _Returned(self.turn, msgspec.msgpack.encode(found, enc_hook=_kept))
        except Exception as error:
            # a module of others may raise anything, an error whose text raises too
            kind, text, line = type(error).__name__, "", ""
            with suppress(Exception):
                kind, text, line = error_parts(error)
            kind = kind[:80] if kind.isidentifier() else "Exception"
            return _RaisedThere(self.turn, (kind, without_surrogates(brief(text)), without_surrogates(line[:200])))


@dataclass(frozen=True, slots=True)
class _Changes(Request[str]):
    """Which functions the code has replaced in its process since they were noted."""

    def answer(self, reporter: Reporter) -> str:
        from ...run.global_state import changes_since_noted

        return changes_since_noted()


def keep(module: Any, pristine: Any, subject: Any) -> None:
    """In the child: the module, a copy that no call has met, and the class of a subject."""
    _KEPT.update({0: module, 1: pristine, _SUBJECT: subject})


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Packed.of(value, laid=False)
    if not callable(value):
        raise TypeError(f"expected tensors, got {type(value).__name__}")
    number = max(_KEPT) + 1
    _KEPT[number] = value
    return number


def _laid(kind: Any, value: Any) -> Tensor:
    return msgspec.convert(value, Packed).tensor(laid=True)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(_AT_THE_CODE[name])


@functools.cache
def _kinds(name: str) -> tuple[Any, Any]:
    """What a function of _AT_THE_CODE is given behind the subject, as a structure, and what it returns."""
    hints = get_type_hints(_AT_THE_CODE[name])
    fields: list[Any] = [
        (each.name, hints[each.name], *([] if each.default is each.empty else [each.default]))
        for each in [*_signature(name).parameters.values()][1:]
    ]
    returned = int | None if hints["return"] is Any else hints["return"]
    return msgspec.defstruct("Given", fields, kw_only=True), returned


def is_module(target: Any) -> bool:
    return target.facts.is_module if isinstance(target, Away) else isinstance(target, nn.Module)
