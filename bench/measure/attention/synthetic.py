"""Statistics of a variant's weights on the inputs of a sweep, from some chunks of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ....variants.contract import Variant
from ...core.order import evenly_spaced
from ...core.record import Measurement
from .recorder import CHUNK, Call, recording, slices
from .statistics import AttentionSums, count_weights, measurements_of

MOST_CHUNKS = 8
"""Chunks of 128 queries that are looked at, spread over the sequence: the weights of all would take too long."""


def on_inputs(variants: Sequence[Variant], run: Callable[[], object]) -> Iterator[Measurement]:
    """Overall, per-layer and per-head figures of the first sequence that `run` passes through the variants.

    Nothing for variants without weights. Never more than one chunk of queries against all keys at a time.
    """
    sums: dict[int, AttentionSums] = {}

    def record(layer: int, call: Call) -> None:
        count_weights(sums, layer, call.first_example(), chunks(call.queries))

    modes = [variant.training for variant in variants]
    try:
        for variant in variants:
            variant.eval()
        with recording(variants, record), torch.no_grad():
            run()
    finally:
        for variant, mode in zip(variants, modes, strict=True):
            variant.train(mode)
    yield from measurements_of(sums)


def chunks(queries: int) -> list[slice]:
    """Up to eight whole chunks, the first and the last among them.

    >>> chunks(300)
    [slice(0, 128, None), slice(128, 256, None), slice(256, 300, None)]
    >>> len(chunks(100_000))
    8
    """
    found = slices(queries, CHUNK)
    return [found[at] for at in evenly_spaced(len(found), MOST_CHUNKS)]
