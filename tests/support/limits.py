"""A limit of time for what runs in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS, WAITING_SECONDS = 10, 60
"""Of the processor, and on the clock; the second is longer, since other tests may run beside."""


class OutOfTime(BaseException):
    """The limit is over. No Exception: code that is tried may catch those."""


@contextmanager
def limited() -> Iterator[None]:
    """Raises OutOfTime after SECONDS of processor time, or after WAITING_SECONDS on the clock."""

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, WAITING_SECONDS))
    previous = {number: signal.signal(number, stop) for number, _, _ in timers}
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, timer, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, previous[number])
