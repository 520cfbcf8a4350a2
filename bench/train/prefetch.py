"""Prefetching: a thread that prepares the next batches while the device works on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

AHEAD = 3
"""Batches that may lie ready: one is taken while another is made, and one more evens out how long they take."""

Made = TypeVar("Made")


class Prefetcher(Generic[Made]):
    """What `make` returns for each of `numbers`, in that order, made ahead by a thread of its own.

    As a context manager: the thread begins and ends with the block. Results that nobody asked for are dropped, so
    the state of a training is that of the batches it took. An error of `make` is raised, with its traceback, where its
    result is asked for.
    """

    def __init__(self, make: Callable[[int], Made], numbers: range, *, ahead: int = AHEAD):
        self._make, self._numbers = make, numbers
        self._due = iter(numbers)
        self._room = threading.Semaphore(ahead)
        self._ended = threading.Event()
        # no bound of its own: `_room` is one, and a thread that waits for it can be told to end
        self._ready: SimpleQueue[tuple[Made | None, BaseException | None]] = SimpleQueue()
        # a daemon, so that a worker that is told to exit does not wait for a batch
        self._thread = threading.Thread(target=self._run, name="attnbench prefetch", daemon=True)

    def __call__(self, number: int) -> Made:
        """The result of that number; raises ValueError where it is not the next one."""
        if (due := next(self._due, None)) != number:
            raise ValueError(f"expected to be asked for batch {due}, which is the next one, got {number}")
        made, error = self._ready.get()
        self._room.release()
        if error is not None:
            raise error
        assert made is not None
        return made

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._room.release()
        self._thread.join()

    def _run(self) -> None:
        for number in self._numbers:
            self._room.acquire()
            if self._ended.is_set():
                return
            try:
                self._ready.put((self._make(number), None))
            # whatever it is belongs to the training, which would wait for ever
            except BaseException as error:
                self._ready.put((None, error))
                return
