"""Work in several children at once, each with one order; an interrupt ends them all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import TypeVar

from .child import ChannelError, Child

O = TypeVar("O")  # noqa: E741
A = TypeVar("A")


def side_by_side(
    orders: Sequence[O], processes: int, target: str, ask: Callable[[Child, O], A], *, keep: bool = False
) -> Iterator[tuple[O, A]]:
    """Each order with what `ask` returns of it, as they end; `ask` gets a child that runs `target`, in a thread.

    keep: a child gets another order after its answer, unless `ask` has ended it; else each order has its own. Closing
    the iterator ends what still runs. Raises what `ask` raises.
    """
    running: set[Child] = set()
    idle: list[Child] = []
    ended = False

    def free() -> Child:
        while True:
            try:
                child = idle.pop()
            except IndexError:
                return Child(target)
            try:
                child.receive(0.0)
            except TimeoutError:
                return child
            except ChannelError:
                pass
            # it has ended, or says what nobody has asked
            child.end()

    def one(order: O) -> A:
        child = free()
        running.add(child)
        if ended:
            child.stop()
        try:
            return ask(child, order)
        finally:
            running.discard(child)
            if keep and child.open and not ended:
                idle.append(child)
            else:
                child.end()

    def end_idle() -> None:
        for child in idle:
            child.end()

    with ExitStack() as at_the_end, ThreadPoolExecutor(max(1, processes)) as pool:
        at_the_end.callback(end_idle)
        waiting: dict[Future[A], O] = {pool.submit(one, order): order for order in orders}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            ended = True
            pool.shutdown(wait=False, cancel_futures=True)
            # whoever waits for one of them hears of its end
            for child in [*running]:
                child.stop()
