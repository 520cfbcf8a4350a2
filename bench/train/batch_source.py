"""Where the batches of a training come from: made when they are asked for, made ahead, or gathered on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ...tasks.contract import Subset
from ..models.blocks import Batch
from .device import move, pinned
from .device_tokens import DeviceTokens
from .objectives.objective import Choice, Objective
from .prefetch import Prefetcher

Source = Callable[[int], Batch]
"""The batch of a number, on the device."""

HOST = torch.device("cpu")


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
