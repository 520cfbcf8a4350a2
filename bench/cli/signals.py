"""Signals that end a command, as an exception that passes every `with` on its way out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal has ended the command. No KeyboardInterrupt: libraries of command lines swallow that."""

    def __init__(self, number: int):
        self.number = number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """As shells write the end by a signal."""
        return 128 + self.number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises Interrupted; those that follow do not disturb the ending.

    A signal that this process ignores, as SIGHUP under nohup, stays ignored. Handlers are put back at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    handled = [number for number in ENDING if before[number] is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
