"""Link: foreign code in a child, as the tests see it here: they send inputs, and tensors come back as plain bytes.

The code that compares, reduces and judges runs in a process that has never imported the foreign code. A function under
`@at_the_code` gets first what lies in the child: an Away, or a subject whose `module` is one. It runs in the child, or
here for a subject whose module is here. It returns tensors, numbers and texts, no verdict.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import msgspec
import torch
from torch import Tensor

from ..core import errors
from ..core.decode import Text, brief, without_surrogates
from ..core.errors import AttnbenchError, PluginError, crash_text
from ..core.registry import Registry
from ..gate.result import ErrorElsewhere, error_parts
from ..process.ask import SERVICE, Reporter, Request, ask_child
from ..process.child import Child
from .global_state import changes_since_noted

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE = 10.0
"""The time that all answers of one link may take, in limits of an ordinary answer: some layers loop over positions."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float8_e4m3fn",
        "float8_e5m2", "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
"""The types of numbers that cross, by name."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Name = Annotated[str, msgspec.Meta(max_length=200)]


_NUMBERS_BEFORE = 64
"""At the alignment that allocators have, so that nothing is slower."""


class Packed(msgspec.Struct, frozen=True):
    """A tensor as bytes. strides: those in memory, of what goes to the child; what is expanded is sent once."""

    dtype: Name
    shape: tuple[Size, ...]
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
        shape = tuple(min(size, 1) if laid and not strides[at] else size for at, size in enumerate(self.shape))
        if math.prod(shape) * dtype.itemsize != len(self.data):
            raise ValueError(f"Expected {self.dtype} {brief(self.shape, 80)}, got {len(self.data):,} bytes")
        found = torch.empty(shape, dtype=dtype)
        if self.data:
            found.flatten().view(torch.uint8).copy_(torch.frombuffer(bytearray(self.data), dtype=torch.uint8))
        return _placed(shape, strides, dtype).copy_(found).expand(self.shape) if laid else found


def _placed(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor; what is not contiguous begins behind other numbers, as a part of a joined projection does."""
    made = torch.empty_strided(shape, strides, dtype=dtype)
    if made.is_contiguous() or not made.numel():
        return made
    used = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.ones(_NUMBERS_BEFORE + used, dtype=dtype).as_strided(shape, strides, _NUMBERS_BEFORE)


def _once(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    return tensor[tuple(slice(None) if stride else slice(0, 1) for stride in strides)]


class _Returned(msgspec.Struct, frozen=True, tag="returned"):
    """An answer in msgpack. turn: of the question; another process that answers it too has the same."""

    turn: int
    value: bytes


class _RaisedThere(msgspec.Struct, frozen=True, tag="raised"):
    """An error that the code raised, which a test may expect."""

    turn: int
    parts: tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w{0,79}\Z")], Text, Name]


class _Lost(BaseException):
    """The child has died, hung or answered nonsense: no test may take that for an error of the module."""

    def __init__(self, error: PluginError):
        self.error = error


_AT_THE_CODE: dict[str, Callable[..., Any]] = {}
"""The functions that a child runs, by name: no other."""

WINDOW = 8
"""Tensors of the last calls that keep their place in memory, there as here."""

_KEPT: dict[int, Any] = {}
"""In the child: modules, copies of them and whatever else is used again, by number."""

_NUMBERS = itertools.count()


def at_the_code(function: F) -> F:
    """Runs a function, or method, of a subject where the module of the subject lies."""
    name = f"{function.__module__}.{function.__qualname__}"
    _AT_THE_CODE[name] = function

    @functools.wraps(function)
    def run(subject: Any, *args: Any, **kwargs: Any) -> Any:
        away = subject if isinstance(subject, Away) else subject.module
        if not isinstance(away, Away):
            return function(subject, *args, **kwargs)
        given = _signature(name).bind(subject, *args, **kwargs).arguments
        about = None if away is subject else subject.about()
        return away.link.answer(away.number, about, name, dict([*given.items()][1:]))

    return run  # type: ignore[return-value]


class Away:
    """A module, or something else, that the child keeps, by its number there."""

    def __init__(self, link: Link, number: int):
        self.link, self.number = link, number
        weakref.finalize(self, link.dropped.append, number)

    @property
    def facts(self) -> Any:
        return self.link.facts


class Link:
    """The way to a child that holds foreign code, whose answers have one time limit together.

    facts: the answer to the opening request, or what replaces it. pristine: a copy of the module that no call has met.
    window: the numbers of the last places in memory, of which there are `places`, with the tensor there and its
    version as it was sent. others: a hash of the states of other random numbers than torch's, as they were last; None
    at first.
    """

    facts: Any
    pristine: Away
    others: int | None

    def __init__(self, child: Child, registry: Registry, name: str, patience: float):
        self.child, self.registry, self.name, self.patience = child, registry, name, patience
        self.dropped: list[int] = []
        self.turn, self.began = 0, time.monotonic()
        self.window: deque[tuple[int, Tensor, list[int]]] = deque(maxlen=WINDOW)
        self.places, self.others = 0, None

    def ask(self, request: Request[Any]) -> Any:
        """Raises _Lost for what no honest child does, and for a child that has ended."""
        try:
            return ask_child(self.child, self.registry, self.name, request, patience=self.patience, began=self.began)
        except PluginError as error:
            raise _Lost(error) from None

    def changes(self) -> str:
        """Functions that the code has replaced in its process, in words."""
        return self.ask(_Changes())  # type: ignore[no-any-return]

    def answer(self, number: int, about: dict[str, Any] | None, name: str, given: dict[str, Any]) -> Any:
        """The result of the function of this name in the child; raises what it raises there."""
        self.turn += 1
        dropped = tuple(self.dropped)
        del self.dropped[: len(dropped)]
        reply = self.ask(
            _Used(
                turn=self.turn, number=number, about=about, name=name, dropped=dropped,
                arguments=msgspec.msgpack.encode(given, enc_hook=self._sent),
            )
        )  # fmt: skip
        if reply.turn != self.turn:
            self.lose("answered a question that was not asked, as a second process does")
        if isinstance(reply, _RaisedThere):
            raise _raised(reply.parts)
        try:
            found = msgspec.msgpack.decode(reply.value, type=_kinds(name)[1], dec_hook=_got)
        except (ValueError, RecursionError) as error:
            self.lose(f"returned a value of the wrong type: {brief(error)}")
        # of functions that return a module
        return Away(self, found) if _kinds(name)[2] and found is not None else found

    def lose(self, reason: str) -> NoReturn:
        raise _Lost(PluginError(self.registry.plugin(self.name), reason))

    def _sent(self, value: Any) -> Any:
        return Packed.of(value, laid=True) if isinstance(value, Tensor) else str(value).removeprefix("torch.")


def _got(kind: Any, value: Any) -> Tensor:
    return msgspec.convert(value, Packed).tensor(laid=False)


def _raised(parts: tuple[str, str, str]) -> BaseException:
    """The error that the code has raised; one of ours, and a shortage of memory, as it would be raised here."""
    ours = getattr(errors, parts[0], None)
    if isinstance(ours, type) and issubclass(ours, AttnbenchError) and ours is not PluginError:
        return ours(parts[1])
    if parts[0] in ("MemoryError", "OutOfMemoryError"):
        return MemoryError(parts[1])
    return type(parts[0], (ErrorElsewhere,), {})(parts)  # type: ignore[no-any-return]


@contextmanager
def linked(registry: Registry, name: str, opening: Request[Any], patience: float = PATIENCE) -> Iterator[Link]:
    """The way to a child of its own, which has answered `opening`; nothing is compared in it.

    Raises PluginError for a child that dies, hangs or talks nonsense, or has replaced functions that examine it.
    """
    try:
        with Child(SERVICE) as child:
            link = Link(child, registry, name, patience)
            link.facts = link.ask(opening)
            yield link
            # code that replaces what examines it has no verdict
            if changes := link.changes():
                raise PluginError(registry.plugin(name), changes, "incorrect")
    except _Lost as lost:
        raise lost.error from None
    except AttnbenchError:
        raise
    except Exception as error:
        # what it returned fits no step that comes before the tests, each of which catches errors of its own
        raise PluginError(registry.plugin(name), crash_text(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used(Request[_Returned | _RaisedThere]):
    """A function of _AT_THE_CODE with what has this number, or a subject of it. dropped: numbers that nobody needs.

    about: what makes a subject of a module, of the function that was given to `make_subjects_by`; None for no subject.
    """

    turn: int
    number: int
    about: dict[str, Any] | None
    name: str
    dropped: tuple[int, ...]
    arguments: bytes

    def answer(self, reporter: Reporter) -> _Returned | _RaisedThere:
        for number in self.dropped:
            _KEPT.pop(number, None)
        subject = _KEPT[self.number]
        if self.about is not None:
            subject = _SUBJECTS[0](subject, self.about)
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
            # of a kind that a wing has made, the kind of ours that it is, with the whole of what we say
            if ours := next(
                (each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each), None
            ):
                kind = ours.__name__
            text = brief(text, 1000) if ours else brief(text)
            return _RaisedThere(self.turn, (kind, without_surrogates(text), without_surrogates(line[:200])))


@dataclass(frozen=True, slots=True)
class _Changes(Request[str]):
    """The functions that the code has replaced in its process since they were noted."""

    def answer(self, reporter: Reporter) -> str:
        return changes_since_noted()


_SUBJECTS: list[Callable[[Any, dict[str, Any]], Any]] = []


def make_subjects_by(make: Callable[[Any, dict[str, Any]], Any]) -> None:
    """In the child: how a subject is made of a module that is kept, and what its `about()` gave."""
    _SUBJECTS[:] = [make]


def keep(value: Any) -> int:
    """In the child: keeps it until nobody needs it, and returns its number."""
    number = next(_NUMBERS)
    _KEPT[number] = value
    return number


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Packed.of(value, laid=False)
    if not callable(value):
        raise TypeError(f"expected tensors, got {type(value).__name__}")
    return keep(value)


def kept(number: int) -> Any:
    """In the child: what was kept under this number."""
    return _KEPT[number]


def _laid(kind: Any, value: Any) -> Tensor:
    return msgspec.convert(value, Packed).tensor(laid=True)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(_AT_THE_CODE[name])


@functools.cache
def _kinds(name: str) -> tuple[Any, Any, bool]:
    """What a function of _AT_THE_CODE is given behind the subject, as a structure, and what it returns; whether that is
    kept in the child."""
    hints = get_type_hints(_AT_THE_CODE[name])
    fields: list[Any] = [
        (each.name, hints[each.name], *([] if each.default is each.empty else [each.default]))
        for each in [*_signature(name).parameters.values()][1:]
    ]
    is_kept = hints["return"] is Any
    return msgspec.defstruct("Given", fields, kw_only=True), int | None if is_kept else hints["return"], is_kept
