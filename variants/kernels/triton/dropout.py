"""The mask of `ops/dropout` for a tile of scores: computed where it is needed, forward and backward, never stored.

One Philox block decides over eight keys of a query. A row of a tile has at most 64 keys, so its decisions are the bits
of an int64: they are computed eight at a time in a layout that suits them, and cross as one number a row into the
layout of the scores, where a shift takes out the bit of each key. A weight that is dropped counts as zero, NaN too.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import KEYS_PER_BLOCK, ROUNDS, WeightDropout, kept_scale, threshold
from .tiles import Tiles

WIDEST = 64
"""Keys of a tile, at most, whose decisions fit into one number."""

_ROUNDS = tl.constexpr(ROUNDS)
_KEYS_PER_BLOCK = tl.constexpr(KEYS_PER_BLOCK)


def arguments(drop: WeightDropout | None) -> tuple[Tensor | None, int, float]:
    """Seed, threshold and factor of what is kept, as the kernels take them."""
    if drop is None:
        return None, 0, 1.0
    return drop.seed, threshold(drop.rate), kept_scale(drop.rate)


def narrowed(tiles: Tiles) -> Tiles:
    """Tiles no wider than the mask can be, of as many scores."""
    wide = max(1, tiles.columns // WIDEST)
    return replace(tiles, rows=tiles.rows * wide, columns=tiles.columns // wide)


@triton.jit
def load_seed(seed_ptr, DROP: tl.constexpr) -> Any:
    """The seed, int64, or 0 where nothing is dropped."""
    if DROP:
        return tl.load(seed_ptr)
    else:
        return 0


@triton.jit
def kept_bits(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """(ROWS,) int64: bit j says that the weight of key `column` + j is kept, for the queries `rows` of a head.

    `column` is a multiple of 8, and `least` the least of the 65,536 values of 16 bits that keeps.
    """
    byte_at = tl.arange(0, COLUMNS // _KEYS_PER_BLOCK)
    # the four counters of Philox have one shape
    nothing = (rows[:, None] + byte_at[None, :]) * 0
    word0, word1, word2, word3 = tl.philox(
        seed, nothing + column // _KEYS_PER_BLOCK + byte_at[None, :], nothing + rows[:, None],
        nothing + tl.cast(head, tl.int32), nothing + tl.cast(batch, tl.int32), n_rounds=_ROUNDS,
    )  # fmt: skip
    byte = _two(word0, least) | (_two(word1, least) << 2) | (_two(word2, least) << 4) | (_two(word3, least) << 6)
    # bytes do not overlap, so a sum joins them
    return tl.sum(byte.to(tl.int64) << (byte_at * _KEYS_PER_BLOCK)[None, :].to(tl.int64), 1)


@triton.jit
def _two(word, least):
    """The decisions over two keys, by the low and the high half of a word: bits 0 and 1."""
    low, high = (word & 0xFFFF).to(tl.int32), (word >> 16).to(tl.int32)
    return (low >= least).to(tl.int32) | ((high >= least).to(tl.int32) << 1)


@triton.jit
def kept_along_keys(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """(ROWS, COLUMNS) Boolean: which weights of a tile are kept; arguments as in `kept_bits`."""
    bits = kept_bits(seed, least, rows, column, batch, head, COLUMNS)
    return ((bits[:, None] >> tl.arange(0, COLUMNS)[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def kept_along_queries(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """The same transposed, (COLUMNS, ROWS), for the kernels along the queries."""
    bits = kept_bits(seed, least, rows, column, batch, head, COLUMNS)
    return ((bits[None, :] >> tl.arange(0, COLUMNS)[:, None].to(tl.int64)) & 1) != 0
