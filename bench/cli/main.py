"""The command line; `main` is the console script. Only what `--help` needs is imported before a command runs.

A signal ends a command as an exception that passes every `with` on its way out.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

RESUMABLE = ("run", "data", "judge")
"""Commands whose finished work is kept, and that go on where they were interrupted."""

__all__ = ["main"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN_SECONDS = 0.05
"""The time after which a signal comes again that met a moment at which nothing may be raised."""


class Interrupted(BaseException):
    """A signal has ended the command. No KeyboardInterrupt: libraries of command lines swallow that."""

    def __init__(self, number: int):
        self.number = number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """The code by which a shell knows the end by a signal."""
        return 128 + self.number


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises Interrupted; those that follow do not disturb the ending.

    A signal that this process ignores, as SIGHUP under nohup, stays ignored. Handlers are put back at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = {number: signal.getsignal(number) for number in ENDING}, sys.unraisablehook
    alarm = signal.getsignal(signal.SIGALRM)
    handled = [number for number in ENDING if before[number] is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _imports_torch(frame):
            come_again(number)
            return
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    def come_again(number: int) -> None:
        signal.signal(signal.SIGALRM, lambda _, frame: interrupt(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def raise_again(unraisable: sys.UnraisableHookArgs) -> None:
        """What is raised while an object is finalised ends nothing."""
        if isinstance(unraisable.exc_value, Interrupted):
            come_again(unraisable.exc_value.number)
        else:
            hook(unraisable)

    for number in handled:
        signal.signal(number, interrupt)
    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if signal.getsignal(signal.SIGALRM) is not alarm:
            # one that has not come yet would be raised behind the command
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, alarm)
        for number in handled:
            signal.signal(number, before[number])


def _imports_torch(frame: FrameType | None) -> bool:
    """True while torch is imported: C++ aborts the process there, or drops what is raised below it."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and str(frame.f_globals.get("__name__")).split(".")[0] == "torch":
            return True
        frame = frame.f_back
    return False


def main() -> int:
    """Runs the command line; a signal ends it, and all processes that it started, with one line on the error stream."""
    try:
        with signals_raise():
            # inside: an interrupt while libraries are imported is told like any other
            from .app import run_app

            return run_app()
    except Interrupted as end:
        is_resumable = bool(sys.argv[1:]) and sys.argv[1] in RESUMABLE
        advice = "; finished results are kept, and the same command resumes" if is_resumable else ""
        from .output import warn

        # a terminal that was closed takes no message
        with contextlib.suppress(OSError, ValueError):
            warn(f"attnbench: interrupted by {end.name}{advice}")
        return end.exit_code
