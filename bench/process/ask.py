"""Requests to a plugin: answered in this process for attnbench's own code, in a child for everybody else's.

    facts = ask(TASKS, "their-task", DescribeTask(task=Spec("their-task")))

One child for each distribution imports its plugins. A plugin that raises, ends its process, hangs or writes nonsense on
its channel costs its own answer: `ask` raises PluginError, whose reason ends with the last lines of the child's error
stream. Answers and failures are kept until `asking` ends, so that one command asks a question once.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Generic, TypeVar, get_type_hints

import msgspec

from ..core import errors
from ..core.decode import brief, decode_hook, encode_hook
from ..core.errors import LOG, AttnbenchError, PluginError, crash_text
from ..core.registry import Registry, import_foreign_plugins_here
from .child import (
    MOST_CHARACTERS,
    ChannelError,
    Child,
    decode_line,
    decode_order,
    encode_line,
    encode_order,
    read_lines,
)
from .servers import end_servers

A = TypeVar("A")

SERVICE = __name__
"""The module whose `main` answers requests in a child."""

PLUGIN_SECONDS = 60.0
"""The time limit of an answer, with the import of torch and of the plugin; `ATTNBENCH_PLUGIN_SECONDS` changes it."""

PART_BYTES, MOST_ANSWER_BYTES = 16 * 2**20, 2 * 2**30
"""Bytes of an answer in one line, and in all."""

IMPORT_SECONDS = 10.0
"""An import of a plugin that takes longer is named while it lasts."""

GOODBYE_SECONDS = 2.0
"""The time that a child that has closed its channel may take to exit, before it is ended."""


class Reporter:
    """Shows messages to a person, and the progress of long work; this one prints the messages alone."""

    def notice(self, message: str) -> None:
        print(message)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done; `total` is 0 where it is not known."""


class Silent(Reporter):
    def notice(self, message: str) -> None:
        pass


class Request(Generic[A]):
    """A request to a plugin: a frozen dataclass whose `answer` runs where the plugin may be imported.

    The parent decodes the answer of the child by the type that `answer` states.
    """

    __slots__ = ()

    def answer(self, reporter: Reporter) -> A:
        """Returns the answer; raises AttnbenchError as it would where it is asked."""
        raise NotImplementedError


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A part of an answer that is longer than a line."""

    value: bytes


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """An answer, or the rest of one, in msgpack: JSON has no infinity."""

    value: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An AttnbenchError, raised again where the question was asked."""

    kind: str
    message: str


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """Any other exception, as a message."""

    reason: str


class Noticed(msgspec.Struct, frozen=True, tag="noticed"):
    message: str


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    what: str
    done: int
    total: int


class Importing(msgspec.Struct, frozen=True, tag="importing"):
    """The import of a plugin has begun, or is over."""

    over: bool


Reply = Begun | Answered | Refused | Raised | Noticed | Progressed | Importing


def ask(
    registry: Registry,
    name: str,
    request: Request[A],
    *,
    reporter: Reporter | None = None,
    patience: float = 1.0,
    most_seconds: float | None = None,
    apart: bool = False,
) -> A:
    """The answer of the plugin `name`. Raises what `answer` raises of AttnbenchError, and PluginError.

    `patience`: times the limit of an ordinary question; the limit starts again whenever the plugin reports progress.
    `most_seconds`: the limit is no longer than this, where this is longer than the limit of an ordinary question.
    `apart`: a child answers also for attnbench's own code, since the question may crash it.
    """
    reporter = reporter or Reporter()
    is_foreign = apart or registry.is_foreign(name)
    if not is_foreign and not _CHILDREN.depth:
        return request.answer(reporter)
    answers, plugin, key = _CHILDREN.answers, (registry.group, name), (registry.group, name, request)
    if key not in answers and plugin in answers:
        # it has hung, and would hang again at every question; what it has answered before remains true
        answers[key] = answers[plugin]
    if key not in answers:
        try:
            if is_foreign:
                answers[key] = _ask_child(registry, name, request, reporter, _limit(patience, most_seconds))
            else:
                answers[key] = request.answer(reporter)
        except AttnbenchError as error:
            answers[key] = error
            if isinstance(error, PluginError) and error.outcome == "timeout":
                answers[plugin] = error
    found = answers[key]
    if isinstance(found, AttnbenchError):
        raise found
    answer: A = found
    return answer


def ask_child(
    child: Child,
    registry: Registry,
    name: str,
    request: Request[A],
    *,
    patience: float = 1.0,
    began: float | None = None,
) -> A:
    """Ask a child that runs SERVICE and is the caller's own: several threads may ask one each at once.

    Nothing is remembered, and notices and progress of the child are dropped. began: when the time limit starts, of
    `time.monotonic`, where several requests share one.
    """
    try:
        reply = _conversation(child, registry, name, request, Silent(), _limit(patience, None), began)
    except _NoAnswer as problem:
        if problem.is_over:
            child.end(GOODBYE_SECONDS)
        raise _plugin_error(registry, name, child, problem) from None
    return _answer(registry, name, request, reply)


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
            end_servers()
            _CHILDREN.answers.clear()
            _CHILDREN.slow.clear()


def end_children() -> None:
    """Ends the children that answer questions; the next question starts another.

    Before anything is timed: a plugin may have started a thread that takes a core.
    """
    while _CHILDREN.running:
        _CHILDREN.running.popitem()[1].end()


class _Children:
    """The children of this process by package, and of the current command answers, and plugins named as slow."""

    def __init__(self) -> None:
        self.running: dict[str, Child] = {}
        self.answers: dict[object, Any] = {}
        self.slow: set[str] = set()
        self.depth = 0


_CHILDREN = _Children()


def _ask_child(registry: Registry, name: str, request: Request[A], reporter: Reporter, limit: float) -> A:
    package = registry.package(name)
    child = _CHILDREN.running.get(package)
    if child is None:
        child = _CHILDREN.running[package] = Child(SERVICE)
    try:
        reply = _conversation(child, registry, name, request, reporter, limit)
    except _NoAnswer as problem:
        _CHILDREN.running.pop(package).end(GOODBYE_SECONDS if problem.is_over else 0.0)
        raise _plugin_error(registry, name, child, problem) from None
    except BaseException:
        # whoever interrupts the answer must not find it under the next question
        _CHILDREN.running.pop(package).end()
        raise
    return _answer(registry, name, request, reply)


def _plugin_error(registry: Registry, name: str, child: Child, problem: _NoAnswer) -> PluginError:
    last = child.last_errors
    reason = child.death if problem.is_over else problem.reason + (f"; it last said: {last}" if last else "")
    return PluginError(registry.plugin(name), reason, problem.outcome)


def _answer(registry: Registry, name: str, request: Request[A], reply: Answered | Refused | Raised) -> A:
    if isinstance(reply, Refused) and reply.kind != PluginError.__name__:
        kind = getattr(errors, reply.kind, None)
        raise (kind if isinstance(kind, type) and issubclass(kind, AttnbenchError) else AttnbenchError)(reply.message)
    if isinstance(reply, Refused):
        raise PluginError(registry.plugin(name), reply.message)
    if isinstance(reply, Raised):
        raise PluginError(registry.plugin(name), reply.reason)
    try:
        kind = get_type_hints(type(request).answer)["return"]
        answer: A = msgspec.msgpack.decode(reply.value, type=kind, dec_hook=decode_hook)
    except (ValueError, RecursionError) as error:
        raise PluginError(registry.plugin(name), f"returned a value of the wrong type: {error}") from None
    return answer


class _NoAnswer(Exception):
    def __init__(self, reason: str = "", outcome: str = "crashed", is_over: bool = False):
        self.reason, self.outcome, self.is_over = reason, outcome, is_over


def _limit(patience: float, most_seconds: float | None) -> float:
    ordinary = float(os.environ.get("ATTNBENCH_PLUGIN_SECONDS") or PLUGIN_SECONDS)
    limit = patience * ordinary
    return limit if most_seconds is None else max(min(limit, most_seconds), ordinary)


def _conversation(
    child: Child,
    registry: Registry,
    name: str,
    request: Request[Any],
    reporter: Reporter,
    limit: float,
    began: float | None = None,
) -> Answered | Refused | Raised:
    """The last reply of the child; raises _NoAnswer where it sends no answer for `limit` seconds."""
    ends, names = (time.monotonic() if began is None else began) + limit, math.inf
    child.send(encode_order(request, packed=True), max(ends - time.monotonic(), 0.001))
    parts = bytearray()
    while True:
        try:
            line = child.receive(max(min(ends, names) - time.monotonic(), 0.0))
            reply = None if line is None else decode_line(line, Reply, packed=True)
        except TimeoutError:
            if names < ends:
                _name_slow_import(registry.plugin(name), limit)
                names = math.inf
                continue
            raise _NoAnswer(f"no answer in {limit:g} s", "timeout") from None
        except ChannelError as error:
            raise _NoAnswer(str(error)) from None
        except (ValueError, RecursionError):
            raise _NoAnswer("it sent a malformed message") from None
        if reply is None:
            raise _NoAnswer(is_over=True)
        if isinstance(reply, Answered):
            return Answered(bytes(parts) + reply.value) if parts else reply
        if isinstance(reply, Refused | Raised):
            return reply
        if isinstance(reply, Begun):
            parts += reply.value
            if len(parts) > MOST_ANSWER_BYTES:
                raise _NoAnswer(f"it answered with more than {MOST_ANSWER_BYTES / 2**30:g} GiB")
        elif isinstance(reply, Noticed):
            reporter.notice(reply.message)
        elif isinstance(reply, Importing):
            names = math.inf if reply.over else time.monotonic() + IMPORT_SECONDS
        else:
            reporter.progress(reply.what, reply.done, reply.total)
            ends = time.monotonic() + limit


def _name_slow_import(plugin: str, limit: float) -> None:
    """Once in a command, however many children import it; to the error stream, since a reader may take the output."""
    if plugin not in _CHILDREN.slow:
        _CHILDREN.slow.add(plugin)
        LOG.warning(
            f"importing {plugin} takes longer than {IMPORT_SECONDS:g} s; "
            f"it is ended after {limit:g} s (ATTNBENCH_PLUGIN_SECONDS)"
        )


def main(orders: IO[bytes], channel: IO[bytes]) -> int:
    """In the child: answers requests to the plugins of one distribution, one after another."""

    def send(reply: Reply) -> None:
        channel.write(encode_line(reply, packed=True))
        channel.flush()

    @contextmanager
    def told() -> Iterator[None]:
        send(Importing(over=False))
        try:
            yield
        finally:
            send(Importing(over=True))

    import_foreign_plugins_here(told)

    class Sending(Reporter):
        def notice(self, message: str) -> None:
            send(Noticed(brief(message, MOST_CHARACTERS)))

        def progress(self, what: str, done: int, total: int) -> None:
            send(Progressed(brief(what), done, total))

    for line in read_lines(orders):
        request = decode_order(line, packed=True)
        try:
            reply: Reply = Answered(msgspec.msgpack.encode(request.answer(Sending()), enc_hook=encode_hook))
        except PluginError as error:
            reply = Refused(PluginError.__name__, brief(error.reason, MOST_CHARACTERS))
        except AttnbenchError as error:
            reply = Refused(type(error).__name__, brief(error, MOST_CHARACTERS))
        except BaseException as error:
            # as in the Record of a Cell that crashed; the error stream has all
            traceback.print_exc(file=sys.stderr)
            reply = Raised(crash_text(error))
        if isinstance(reply, Answered):
            *begun, rest = (reply.value[at : at + PART_BYTES] for at in range(0, len(reply.value), PART_BYTES))
            for part in begun:
                send(Begun(part))
            reply = Answered(rest)
        send(reply)
    return 0
