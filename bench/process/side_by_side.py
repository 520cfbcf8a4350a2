"""Work in several children at once, each with one order; an interrupt ends them all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

from .child import Child

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

    def one(order: O) -> A:
        try:
            child = idle.pop()
        except IndexError:
            child = Child(target)
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

    with ThreadPoolExecutor(max(1, processes)) as pool:
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
    for child in idle:
        child.end()
