"""Input sparsity: what a variant's weights are on the inputs of a sweep, from some chunks of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....variants.contract import Mask, Variant
from ...core.record import Measurement
from .statistics import CHUNK, Tally, count_rows, tallied

MOST_CHUNKS = 8
"""Chunks of 128 queries that are looked at, spread over the sequence: the weights of all would take too long."""


def on_inputs(variants: Sequence[Variant], run: Callable[[], object], heads: int) -> Iterator[Measurement]:
    """Overall, per-layer and per-head figures of the first sequence that `run` passes through the variants.

    Nothing for variants without weights. Never more than one chunk of queries against all keys at a time.
    """
    tallies: dict[int, Tally] = {}
    handles = [v.register_forward_hook(_recorder(tallies, layer, heads)) for layer, v in enumerate(variants)]
    modes = [variant.training for variant in variants]
    try:
        for variant in variants:
            variant.eval()
        with torch.no_grad():
            run()
    finally:
        for handle, variant, mode in zip(handles, variants, modes, strict=True):
            handle.remove()
            variant.train(mode)
    yield from tallied(tallies)


def _recorder(tallies: dict[int, Tally], layer: int, heads: int) -> Any:
    def record(variant: Variant, arguments: tuple[Tensor, Tensor, Tensor, Mask], _: Tensor) -> None:
        query, key = (x[:1] for x in arguments[:2])
        mask = arguments[3]
        mask = Mask(keep=None if mask.keep is None else mask.keep[:1], causal=mask.causal)
        for rows in chunks(query.shape[2]):
            weights = variant.weights(query, key, mask, rows)
            if weights is None:
                return
            count_rows(tallies.setdefault(layer, Tally(heads)), weights, mask, query.shape[2], rows)

    return record


def chunks(queries: int) -> list[slice]:
    """Up to eight whole chunks, the first and the last among them.

    >>> chunks(300)
    [slice(0, 128, None), slice(128, 256, None), slice(256, 300, None)]
    >>> len(chunks(100_000))
    8
    """
    firsts = np.arange(0, queries, CHUNK)
    picked = np.unique(np.linspace(0, len(firsts) - 1, min(MOST_CHUNKS, len(firsts))).round().astype(int))
    return [slice(int(firsts[at]), min(int(firsts[at]) + CHUNK, queries)) for at in picked]
