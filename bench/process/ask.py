"""Questions to a plugin: answered in this process for attnbench's own code, in a child for everybody else's.

    facts = ask(TASKS, "their-task", DescribeTask(task=Spec("their-task")))

One child for each distribution imports what it is asked about. A plugin that raises, ends its process, hangs or floods
its channel costs its own answer: `ask` raises PluginError, whose reason ends with the last lines of the child's error
stream. Answers and failures are kept until `asking` ends, so that one command asks a question once.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from ..core import errors
from ..core.decode import decode_hook, encode_hook
from ..core.errors import AttnbenchError, PluginError
from ..core.registry import Registry
from .child import ChannelError, Child

A = TypeVar("A")

SERVICE = "attnbench.bench.process.service"

PLUGIN_SECONDS = 60.0
"""How long an answer may take, with the import of torch and of the plugin; `ATTNBENCH_PLUGIN_SECONDS` changes it."""

GOODBYE_SECONDS = 2.0
"""How long a child that has closed its channel may take to exit, before it is ended."""


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told while a question is being answered: sentences for a person, and the progress of long work."""

    notice: Callable[[str], None] = print
    progress: Callable[[str, int, int], None] = lambda what, done, total: None


class Question(Generic[A]):
    """A question to a plugin: a frozen dataclass whose `answer` runs where the plugin may be imported.

    `answer` states its type, by which the parent decodes what the child says.
    """

    __slots__ = ()

    def answer(self, told: Told) -> A:
        """The answer; raises AttnbenchError as it would where it is asked."""
        raise NotImplementedError


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """A question on its way to the child."""

    module: str
    name: str
    fields: msgspec.Raw


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    value: msgspec.Raw


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An AttnbenchError, raised again where the question was asked."""

    kind: str
    message: str


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """Any other exception, in words."""

    reason: str


class Noticed(msgspec.Struct, frozen=True, tag="noticed"):
    message: str


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    what: str
    done: int
    total: int


Said = Answered | Refused | Raised | Noticed | Progressed


def ask(
    registry: Registry,
    name: str,
    question: Question[A],
    *,
    told: Told | None = None,
    patience: float = 1.0,
    most_seconds: float | None = None,
) -> A:
    """The answer of the plugin `name`. Raises what `answer` raises of AttnbenchError, and PluginError.

    `patience`: times the limit of an ordinary question; the limit starts again whenever the plugin reports progress.
    `most_seconds`: the limit is no longer than this, where this is longer than the limit of an ordinary question.
    """
    told = told or Told()
    if not registry.is_foreign(name):
        return question.answer(told)
    answers, plugin, key = _CHILDREN.answers, (registry.group, name), (registry.group, name, question)
    if key not in answers and plugin in answers:
        # it has hung, and would hang again at every question; what it has answered before remains true
        answers[key] = answers[plugin]
    if key not in answers:
        try:
            answers[key] = _ask_child(registry, name, question, told, _limit(patience, most_seconds))
        except AttnbenchError as error:
            answers[key] = error
            if isinstance(error, PluginError) and error.outcome == "timeout":
                answers[plugin] = error
    found = answers[key]
    if isinstance(found, AttnbenchError):
        raise found
    answer: A = found
    return answer


@contextmanager
def asking() -> Iterator[None]:
    """One command: at its end, and not at that of one inside it, children end and answers are forgotten."""
    _CHILDREN.depth += 1
    try:
        yield
    finally:
        _CHILDREN.depth -= 1
        if not _CHILDREN.depth:
            end_children()
            _CHILDREN.answers.clear()


def end_children() -> None:
    """Ends the children that answer questions; the next question starts another.

    Before anything is timed: a plugin may have started a thread that takes a core.
    """
    while _CHILDREN.running:
        _CHILDREN.running.popitem()[1].end()


class _Children:
    """The children of this process by package, and the answers of the current command."""

    def __init__(self) -> None:
        self.running: dict[str, Child] = {}
        self.answers: dict[object, Any] = {}
        self.depth = 0


_CHILDREN = _Children()


def _ask_child(registry: Registry, name: str, question: Question[A], told: Told, limit: float) -> A:
    package = registry.package(name)
    child = _CHILDREN.running.get(package)
    if child is None:
        child = _CHILDREN.running[package] = Child(SERVICE)
    try:
        said = _conversation(child, question, told, limit)
    except _NoAnswer as problem:
        _CHILDREN.running.pop(package).end(GOODBYE_SECONDS if problem.is_over else 0.0)
        errors = child.last_errors
        reason = child.death if problem.is_over else problem.reason + (f"; it last said: {errors}" if errors else "")
        raise PluginError(registry.plugin(name), reason, problem.outcome) from None
    except BaseException:
        # whoever interrupts the answer must not find it under the next question
        _CHILDREN.running.pop(package).end()
        raise
    if isinstance(said, Refused):
        raise _error(said, registry.plugin(name))
    if isinstance(said, Raised):
        raise PluginError(registry.plugin(name), said.reason)
    try:
        answer: A = decode_value(said.value, get_type_hints(type(question).answer)["return"])
    except (msgspec.DecodeError, RecursionError) as error:
        raise PluginError(registry.plugin(name), f"its answer is none: {error}") from None
    return answer


class _NoAnswer(Exception):
    def __init__(self, reason: str = "", outcome: str = "crashed", is_over: bool = False):
        self.reason, self.outcome, self.is_over = reason, outcome, is_over


def _limit(patience: float, most_seconds: float | None) -> float:
    ordinary = float(os.environ.get("ATTNBENCH_PLUGIN_SECONDS") or PLUGIN_SECONDS)
    limit = patience * ordinary
    return limit if most_seconds is None else max(min(limit, most_seconds), ordinary)


def _conversation(child: Child, question: Question[Any], told: Told, limit: float) -> Answered | Refused | Raised:
    """What the child says last; raises _NoAnswer where for `limit` seconds it says nothing that is an answer."""
    child.send(encode_line(encode_question(question)))
    ends = time.monotonic() + limit
    while True:
        try:
            line = child.receive(max(ends - time.monotonic(), 0.0))
            said = None if line is None else decode_line(line, Said)
        except TimeoutError:
            raise _NoAnswer(f"no answer in {limit:g} s", "timeout") from None
        except ChannelError as error:
            raise _NoAnswer(str(error)) from None
        except (msgspec.DecodeError, binascii.Error, RecursionError):
            raise _NoAnswer("it wrote on its channel what is no answer") from None
        if said is None:
            raise _NoAnswer(is_over=True)
        if isinstance(said, Answered | Refused | Raised):
            return said
        if isinstance(said, Noticed):
            told.notice(said.message)
        else:
            told.progress(said.what, said.done, said.total)
            ends = time.monotonic() + limit


def _error(said: Refused, plugin: str) -> AttnbenchError:
    if said.kind == PluginError.__name__:
        return PluginError(plugin, said.message)
    kind = getattr(errors, said.kind, None)
    if isinstance(kind, type) and issubclass(kind, AttnbenchError):
        return kind(said.message)
    return AttnbenchError(said.message)


def encode_question(question: Question[Any]) -> Asked:
    kind = type(question)
    return Asked(kind.__module__, kind.__name__, msgspec.Raw(_ENCODER.encode(question)))


def decode_question(asked: Asked) -> Question[Any]:
    """In the child. The module is one of attnbench: the parent sent its name."""
    kind = getattr(importlib.import_module(asked.module), asked.name)
    question: Question[Any] = decode_value(asked.fields, kind)
    return question


def decode_value(value: msgspec.Raw, kind: Any) -> Any:
    return msgspec.msgpack.decode(value, type=kind, dec_hook=decode_hook)


def encode_value(value: object) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(value))


def encode_line(said: Said | Asked) -> bytes:
    """One line, its end included; base64, since JSON knows no infinity and msgpack any byte."""
    return base64.b64encode(_ENCODER.encode(said)) + b"\n"


def decode_line(line: bytes, kind: Any) -> Any:
    return msgspec.msgpack.decode(base64.b64decode(line, validate=True), type=kind)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_hook)
