"""The source of the batches of a training: made when they are asked for, made ahead, or gathered on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...tasks.contract import BatchLayout, Ids, Subset, TokenRows, Whole
from ..models.blocks import Batch
from .device import move, pinned
from .objectives.objective import Choice, Objective

Source = Callable[[int], Batch]
"""The batch of a number, on the device."""

HOST = torch.device("cpu")

AHEAD = 3
"""Batches that may lie ready: one is taken while another is made, and one more evens out how long they take."""

SHARE = 0.05
"""Share of the free memory that tokens may take: no model misses it, and of 80 GB it holds any text here."""

Made = TypeVar("Made")


@contextmanager
def batch_source(
    objective: Objective, train: Subset, task: str, seed: int, device: torch.device, numbers: range
) -> Iterator[Source]:
    """The batches of `numbers`, asked for in that order; they are those of `objective.feed`, wherever they are made.

    On a CPU they are made when they are asked for: a batch takes a few thousandths of a step at most, and a thread that
    makes it ahead takes that time from the same cores (`README.md` has figures). On a GPU the tokens are copied there
    once, where they take little of its memory, and the host only says which rows it wants. Otherwise a thread makes the
    batches ahead.
    """
    feed = objective.feed(train, task, seed)
    if device.type != "cuda":
        yield lambda number: feed(number, device)
        return
    choice = objective.choice(train, task, seed)
    if choice is not None and DeviceTokens.fit(train, device):
        yield _gathered(choice, DeviceTokens(train.split.tokens, device), objective.recipe.length)
        return

    def make(number: int) -> Batch:
        # pinned memory belongs to a device, and a thread begins with the first one
        torch.cuda.set_device(device)
        return pinned(feed(number, HOST))

    with Prefetcher(make, numbers) as prefetcher:
        yield lambda number: move(prefetcher(number), device)


def _gathered(choice: Choice, tokens: DeviceTokens, length: int) -> Source:
    def read(number: int) -> Batch:
        subset, at = choice(number)
        return tokens.read(subset.layout(at, length))

    return read


class Prefetcher(Generic[Made]):
    """Yield what `make` returns for each of `numbers`, in that order, made ahead by a thread of its own.

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


class DeviceTokens:
    """A copy of the token ids of a split on `device`, two bytes each."""

    def __init__(self, tokens: Ids, device: torch.device):
        self.device = device
        # as signed numbers, since torch indexes no unsigned ones of 16 bits; the same bits, read back by a mask
        held = np.array(tokens, dtype=np.uint16).view(np.int16)
        self.tokens = torch.from_numpy(held).to(device)

    @staticmethod
    def fit(subset: Subset, device: torch.device) -> bool:
        """True if the tokens of `subset` take at most SHARE of the free memory, and are laid out as they lie there."""
        if type(subset).batch is not Subset.batch:
            # a task may make its batches in a way of its own
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return 2 * len(subset.split.tokens) <= SHARE * free

    def read(self, layout: BatchLayout) -> tuple[Tensor, Tensor, Tensor]:
        """The batch that `layout.read` gives on the host: ids, lengths and labels, int64."""
        tables = [layout.ids] + ([layout.labels] if isinstance(layout.labels, TokenRows) else [])
        numbers = [part for table in tables for part in _parts(table)]
        if not isinstance(layout.labels, TokenRows):
            numbers.append(np.asarray(layout.labels, dtype=np.int64))
        # one copy for all that the host has to say about a batch
        (joined,) = move((torch.from_numpy(np.concatenate(numbers)),), self.device)
        parts = list(torch.split(joined, [len(part) for part in numbers]))
        lengths = parts[1].view(-1, layout.towers)
        found = [self._table(table, parts) for table in tables]
        labels = found[1] if len(found) > 1 else parts.pop(0)
        return found[0].view(-1, layout.towers, layout.ids.width), lengths, labels

    def _table(self, rows: TokenRows, parts: list[Tensor]) -> Tensor:
        """(rows, width), from the first of `parts`, which it takes."""
        starts, lengths = parts.pop(0)[:, None], parts.pop(0)[:, None]
        skipped = parts.pop(0)[:, None] if rows.skipped is not None else None
        places = torch.arange(rows.width, device=self.device)
        # where a row ends before the table does, what stands behind it is read and then cleared
        at = (starts + places).clamp_(max=max(len(self.tokens) - 1, 0))
        ids = (self.tokens[at] if len(self.tokens) else torch.zeros_like(at)).long() & 0xFFFF
        if rows.real() is None:
            return ids
        real = places < lengths
        return ids * (real if skipped is None else real & (places >= skipped))


def _parts(rows: TokenRows) -> list[Whole]:
    return [rows.starts, rows.lengths] + ([rows.skipped] if rows.skipped is not None else [])
