"""One way to look at the weights of attention: hooks on the variants of a model while it runs.

A fused kernel never writes its weights down, so they are computed a second time, by `Variant.weights`, from the query
and key that the variant was given. That leaves the output untouched and needs nothing from the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ....variants.contract import Mask, Variant

Recorder = Callable[[int, Variant, Tensor, Tensor, Mask], None]
"""(index, variant, query, key, mask), after each forward of the variant at `index`; query and key are (batch, heads,
length, head_dim)."""


@contextmanager
def recording(variants: Sequence[Variant], function: Recorder) -> Iterator[None]:
    """Calls `function` after each forward of one of `variants` inside the `with` statement."""

    def hook_of(index: int) -> Callable[..., None]:
        def hook(variant: Variant, arguments: tuple[Any, ...], output: Tensor) -> None:
            query, key, _, mask = arguments
            function(index, variant, query, key, mask)

        return hook

    handles = [variant.register_forward_hook(hook_of(index)) for index, variant in enumerate(variants)]
    try:
        yield
    finally:
        # a hook that stays behind would slow down every later pass, and would be timed
        for handle in handles:
            handle.remove()


def weights_of_rows(
    variant: Variant, query: Tensor, key: Tensor, mask: Mask, parts: Iterable[slice]
) -> Iterator[tuple[slice, Tensor]]:
    """The weights (batch, heads, rows, keys) of some slices of the queries, one at a time; none where there are none.

    One at a time, since the weights of all queries of a long sequence at once do not fit into memory.
    """
    for rows in parts:
        weights = variant.weights(query, key, mask, rows)
        if weights is None:
            return
        yield rows, weights


def slices(length: int, size: int) -> list[slice]:
    """
    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]
