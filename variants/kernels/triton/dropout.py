"""The mask of `ops/dropout` for a tile of scores: computed where it is needed, forward and backward, never stored.

One Philox block decides over eight keys of a query. Blocks are computed in a layout that suits them; the decisions of
four are the bits of an int32, and cross as one number into the layout of the scores, where each thread shifts its own
bits to the same places and tests them there, by constants. A weight that is dropped counts as zero, NaN too.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import KEYS_PER_BLOCK, ROUNDS, WeightDropout, kept_scale, threshold

_ROUNDS = tl.constexpr(ROUNDS)
_KEYS_PER_BLOCK = tl.constexpr(KEYS_PER_BLOCK)
# the upper bit of both halves of a word, as int32
_UPPER = tl.constexpr(0x80008000 - 2**32)


def arguments(drop: WeightDropout | None) -> tuple[Tensor | None, int, float]:
    """Seed, threshold and factor of what is kept, as the kernels take them."""
    if drop is None:
        return None, 0, 1.0
    return drop.seed, threshold(drop.rate), kept_scale(drop.rate)


@triton.jit
def load_seed(seed_ptr, DROP: tl.constexpr) -> Any:
    """The seed, int64, or 0 where nothing is dropped."""
    if DROP:
        return tl.load(seed_ptr)
    else:
        return 0


@triton.jit
def kept_words(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """Bits of the weights that are kept, of the queries `rows` of a head: (max(1, COLUMNS / 32), ROWS) int32.

    A number holds the decisions over 32 keys, or over 16 where COLUMNS is 16.

    Key `column` + 32 w + 8 p + 2 q + h has bit 16 h + 4 q + p of number w. `column` is a multiple of 8, and `least` the
    least of the 65,536 values of 16 bits that keeps.
    """
    PARTS: tl.constexpr = min(4, COLUMNS // _KEYS_PER_BLOCK)
    part = tl.arange(0, PARTS)[:, None, None]
    word = tl.arange(0, COLUMNS // _KEYS_PER_BLOCK // PARTS)[None, :, None]
    block = column // _KEYS_PER_BLOCK + part + PARTS * word
    rows = rows[None, None, :]
    # the four counters of Philox have one shape
    nothing = (rows + block) * 0
    pair0, pair1, pair2, pair3 = tl.philox(
        seed, nothing + block, nothing + rows, nothing + tl.cast(head, tl.int32), nothing + tl.cast(batch, tl.int32),
        n_rounds=_ROUNDS,
    )  # fmt: skip
    least = tl.cast(least, tl.int32)
    bits = _decided(pair0, least, part) | _decided(pair1, least, 4 + part)
    bits |= _decided(pair2, least, 8 + part) | _decided(pair3, least, 12 + part)
    # bits do not overlap, so a sum over the first axis joins them. With a sum over another axis the compiler lets each
    # thread compute all blocks of its own scores, which four or eight threads share: four times the work
    return tl.sum(bits, 0)


@triton.jit
def _decided(pair, least, place):
    """The decisions by the low and the high half of a word of Philox: bits `place` and 16 + `place`, int32."""
    # both halves are compared at once: their lower 15 bits by a difference, which the bit set above keeps from
    # borrowing; their upper bits by logic
    upper = (least >= 0x8000).to(tl.int32) * _UPPER
    pair = pair.to(tl.int32)
    difference = (pair | _UPPER) - (least * 0x10001 - upper)
    kept = (pair & ~upper) | (~(pair ^ upper) & difference)
    return (kept >> (15 - place)) & (0x10001 << place)


@triton.jit
def kept_along_keys(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """(ROWS, COLUMNS) Boolean: which weights of a tile are kept; arguments as in `kept_words`."""
    words = kept_words(seed, least, rows, column, batch, head, COLUMNS)
    PARTS: tl.constexpr = COLUMNS // _KEYS_PER_BLOCK // words.shape[0]
    # a thread has pairs of neighbouring keys, each eight from the next: one shift a row
    own = tl.trans(words)[:, :, None, None, None] >> (4 * tl.arange(0, 4))[None, None, None, :, None]
    place = tl.arange(0, PARTS)[None, None, :, None, None] + 16 * tl.arange(0, 2)[None, None, None, None, :]
    return tl.reshape((own & (1 << place)) != 0, [rows.shape[0], COLUMNS])


@triton.jit
def kept_along_queries(seed, least, rows, column, batch, head, COLUMNS: tl.constexpr):
    """The same transposed, (COLUMNS, ROWS), for the kernels along the queries."""
    words = kept_words(seed, least, rows, column, batch, head, COLUMNS)
    PARTS: tl.constexpr = COLUMNS // _KEYS_PER_BLOCK // words.shape[0]
    # a thread has two keys, eight apart, of each of its queries: one shift for both
    key = tl.arange(0, _KEYS_PER_BLOCK)
    place = (2 * tl.arange(0, PARTS // 2))[None, :, None, None, None]
    place += (key // 2 * 4 + key % 2 * 16)[None, None, None, :, None]
    own = words[:, None, None, None, :] >> place
    return tl.reshape((own & (1 << tl.arange(0, 2))[None, None, :, None, None]) != 0, [COLUMNS, rows.shape[0]])
