"""One way to look at the weights of attention: hooks on the variants of a model while it runs; and maps of them.

A fused kernel never writes its weights down, so they are computed a second time, by `Variant.weights`, from the query
and key that the variant was given. That leaves the output untouched and needs nothing from the kernel.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....variants.contract import Mask, Variant
from ...models.blocks import Batch, Model

CHUNK = 128
"""Queries whose weights are looked at together."""

SIDE = 64
"""Rows and keys of a map that is stored."""


@dataclass(frozen=True, slots=True)
class Call:
    """One forward of a variant: query and key (batch, heads, length, head_dim), hidden (batch, length, width)."""

    variant: Variant
    query: Tensor
    key: Tensor
    mask: Mask
    hidden: Tensor | None = None

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    def first_example(self) -> Call:
        """The first sequence of the batch alone."""
        valid, hidden = self.mask.valid, self.hidden
        mask = Mask(valid=None if valid is None else valid[:1], causal=self.mask.causal)
        return Call(self.variant, self.query[:1], self.key[:1], mask, None if hidden is None else hidden[:1])

    def weights(self, rows: slice | None = None) -> Tensor | None:
        """Weights (batch, heads, rows, keys); None for a variant without any."""
        return self.variant.weights_with(self.query, self.key, self.mask, rows, self.hidden)

    def weights_of(self, parts: Iterable[slice]) -> Iterator[tuple[slice, Tensor]]:
        """The weights of some slices of the queries, one at a time; none where there are none.

        One at a time, since the weights of all queries of a long sequence at once do not fit into memory.
        """
        for rows in parts:
            weights = self.weights(rows)
            if weights is None:
                return
            yield rows, weights


Recorder = Callable[[int, Call], None]
"""Gets the index of a variant and its call, after each forward."""


@contextmanager
def recording(variants: Sequence[Variant], function: Recorder) -> Iterator[None]:
    """Calls `function` after each forward of one of `variants` inside the `with` statement."""

    def hook(index: int, variant: Variant, arguments: tuple[Any, ...], output: Tensor) -> None:
        query, key, _, mask, *hidden = arguments
        function(index, Call(variant, query, key, mask, *hidden))

    handles = [variant.register_forward_hook(partial(hook, index)) for index, variant in enumerate(variants)]
    try:
        yield
    finally:
        # a hook that stays behind would slow down every later pass, and would be timed
        for handle in handles:
            handle.remove()


def slices(length: int, size: int) -> list[slice]:
    """
    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def attention_maps(model: Model, batch: Batch) -> bytes | None:
    """An .npz of the weights of each example of `batch`; None for a variant without weights.

    `maps`: float16 (examples, layers, heads, rows, keys), means over squares so that no side exceeds 64;
    `tokens`: uint16 (examples, length), 0 = padding; `lengths`: int64 (examples,). Of pairs, the first sequence.
    """
    ids, lengths = (values.cpu().numpy() for values in batch[:2])
    found: list[Tensor] = []
    model.eval()

    def record(_: int, call: Call) -> None:
        queries, keys = call.queries, call.key.shape[2]
        side = -(-max(queries, keys) // SIDE)
        # whole squares in every part, so that pooling by parts is pooling of all
        parts = call.weights_of(slices(queries, CHUNK * side))
        pooled = [shrunk(weights.float(), side).cpu() for _, weights in parts]
        if pooled:
            found.append(torch.cat(pooled, dim=2))

    with recording(model.variants, record), torch.inference_mode():
        model.loss(batch)
    if len(found) < len(model.variants):
        return None
    maps = torch.stack([layer[:: ids.shape[1]] for layer in found], dim=1)
    file = io.BytesIO()
    np.savez_compressed(
        file, maps=maps.numpy().astype(np.float16), tokens=ids[:, 0].astype(np.uint16), lengths=lengths[:, 0]
    )
    return file.getvalue()


def shrunk(weights: Tensor, side: int) -> Tensor:
    """Means over squares of `side`; those at the edges are over what there is. (batch, heads, rows, keys) to fewer."""
    pooled: Tensor = torch.nn.functional.avg_pool2d(weights, side, ceil_mode=True, count_include_pad=False)
    return pooled
