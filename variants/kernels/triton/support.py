"""Thresholds of the sparse maps, and the tiles that hold their weights: two dense passes, then listed tiles only.

The first pass keeps a tile of registers, the largest score of each row in each column of all its tiles: 64 of the row's
keys, its maximum among them. The threshold of some of the keys is a lower bound of that of all, since each weight more
raises it; solved in registers, it costs no pass. From there Newton's method on the norm (see `ops/thresholds.py`) rises
to the threshold pass by pass. Its first pass lists the tiles with a score above, each later one goes by the list and
drops the tiles that have nothing left above: since it never overshoots, no tile is dropped that holds a weight. One
program owns a row of tiles and its list.

Thresholds are kept less the maximum of their row, beside it: in the scores' own size they would be rounded to the
spacing of the scores, 0.06 at a million, while weights of n equal scores ask for a part of 1 / n.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import SIZES, launch
from .tiles import (
    TileLists,
    Tiles,
    columns_to_visit,
    constants,
    load_rows,
    own_rows,
    strides,
    visible,
)

# the hardest rows that were found took 11
_STEPS = 16
# of Newton's method in registers; more saved no pass on any input tried, see ../NOTES.md
_STEPS_IN_REGISTERS = 4
# below it the next step would change no weight in float32
_TOLERANCE = 5e-7
# what sixteen bits can show of a weight is gone long before
_SHORT_TOLERANCE = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportMap:
    """The map: `alpha` 1.5 or 2.0, or None where `excess`, (heads,) float32, holds alpha - 1 of each head."""

    alpha: float | None
    excess: Tensor | None

    @property
    def mode(self) -> int:
        """The constant MODE of the kernels; see `excess_of`."""
        return {2.0: 2, 1.5: 1, None: 0}[self.alpha]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Levels of the rows, and the tiles of each row in use.

    levels (batch * heads, 2, queries) float32: the largest product of query and key, infinite without a key and NaN
    where one is NaN or infinite; and the threshold of (alpha - 1) times the score, less that of the largest.
    """

    levels: Tensor
    lists: TileLists


def find_support(
    query: Tensor, key: Tensor, valid: Tensor | None, causal: bool, sparse_map: SupportMap, tiles: Tiles
) -> Support:
    """Levels of all rows and the list of tiles that may hold a weight; arguments as in `entmax_attention`."""
    batch, heads, queries, head_dim = query.shape
    keys = key.shape[2]
    rows = triton.cdiv(queries, tiles.rows)
    levels = query.new_empty((batch * heads, 2, queries), dtype=torch.float32)
    indices = query.new_empty((batch * heads, rows, triton.cdiv(keys, tiles.columns)), dtype=torch.int16)
    counts = query.new_empty((batch * heads, rows, 2), dtype=torch.int32)
    launch(
        _find_support, (rows * batch * heads,), query, key, valid, sparse_map.excess, levels, indices, counts,
        *strides(query, key), queries, keys, heads, head_dim**-0.5,
        _TOLERANCE if query.dtype == torch.float32 else _SHORT_TOLERANCE,
        warps=tiles.warps, stages=tiles.stages, MODE=sparse_map.mode, STEPS=_STEPS, IN_REGISTERS=_STEPS_IN_REGISTERS,
        **constants(query, key, valid, causal, tiles),
    )  # fmt: skip
    return Support(levels=levels, lists=TileLists(indices=indices, counts=counts))


@triton.jit
def excess_of(excess_ptr, head, MODE: tl.constexpr):
    """alpha - 1; MODE 2 is sparsemax, 1 is 1.5-entmax, 0 any alpha from 1.01 to 2."""
    if MODE == 2:
        return 1.0
    elif MODE == 1:
        return 0.5
    else:
        return tl.minimum(tl.maximum(tl.load(excess_ptr + head), 0.01), 1.0)


@triton.jit
def load_levels(level_ptr, both, rows, queries):
    """The largest product of each row and the threshold less it; rows past the end are like those without a key."""
    # nothing is near infinity
    top = tl.load(level_ptr + 2 * both * queries + rows, mask=rows < queries, other=float("inf"))
    return top, tl.load(level_ptr + (2 * both + 1) * queries + rows, mask=rows < queries, other=0.0)


@triton.jit
def weigh(above, excess, MODE: tl.constexpr):
    """Weights p and factors p^(2 - alpha) from scores above the threshold; both zero where these are not positive."""
    u = tl.maximum(above, 0.0)
    if MODE == 2:
        return u, tl.where(u > 0.0, 1.0, 0.0)
    elif MODE == 1:
        return u * u, u
    else:
        factor = tl.where(u > 0.0, tl.exp2((1.0 / excess - 1.0) * tl.log2(tl.maximum(u, 1e-30))), 0.0)
        return factor * u, factor


@triton.jit
def _rise(mass, factors, excess, MODE: tl.constexpr):
    """The step of Newton's method on the norm n, (n - 1) n^(1/e - 1) / sum of factors; zero where nothing is above."""
    if MODE == 2:
        # alpha 2: the norm is the sum itself, and the factors count the support
        rise = mass - 1.0
    elif MODE == 1:
        # alpha 1.5: the norm is the root of the sum of squares, as in thresholds.entmax15
        norm = tl.sqrt(mass)
        rise = (norm - 1.0) * norm
    else:
        rise = mass - tl.exp2((1.0 - excess) * tl.log2(tl.maximum(mass, 1e-30)))
    # from below and never past the root, since the norm is convex: what is dropped holds no weight. Down by a rounding
    # only: the first step ends at -1 and a little, and has the digits of 1
    return tl.where(mass > 0.0, rise / tl.maximum(factors, 1e-30), 0.0)


@triton.jit
def _largest_of_columns(
    largest, q, k_ptr, valid_ptr, k_row, first_row, queries, keys, first_tile, last_tile,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first_tile, last_tile):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            scores = tl.where(seen, scores, float("-inf"))
        # no reduction: one instruction a score. NaN stays, and spoils the row at the end
        largest = tl.maximum(largest, scores, propagate_nan=tl.PropagateNan.ALL)
    return largest


@triton.jit
def _sum_above(
    total, factors, top, threshold, q, k_ptr, valid_ptr, index_ptr, kept, k_row, slope, excess, first_row, queries,
    keys, first, last,
    LISTED: tl.constexpr, MODE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # of the tile before: whether it is kept is asked a round later, since Triton before 3.9 compiles no maximum of what
    # a product of the same round left, for compute capability 10
    of_tile = tl.zeros_like(factors)
    for at in range(first, last):
        kept += tl.max((of_tile > 0.0).to(tl.int32), 0)
        tile = at
        if LISTED:
            tile = tl.load(index_ptr + at).to(tl.int32)
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        above = (tl.dot(q, tl.trans(k), input_precision=PRECISION) - top[:, None]) * slope - threshold[:, None]
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            above = tl.where(seen, above, -1.0)
        weights, factor = weigh(above, excess, MODE)
        # factors are positive wherever a weight is, so they tell whether the tile still has one
        of_tile = tl.sum(factor, 1)
        total += tl.sum(weights, 1)
        factors += of_tile
        # the list is made, or made shorter, in place: what is written lies at or before what was read, and what is not
        # kept is overwritten by the next
        tl.store(index_ptr + kept, tile)
    kept += tl.max((of_tile > 0.0).to(tl.int32), 0)
    return total, factors, kept


@triton.jit
def _newton_pass(
    top, threshold, before, total, q, k_ptr, valid_ptr, index_ptr, none, k_row, slope, excess, first_row, queries, keys,
    LISTED: tl.constexpr, MODE: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of Newton's method over `total` tiles, the first `before` of them seen whole, all or those of the list.

    Returns the step, (ROWS,), and how many tiles of both kinds the list has now.
    """
    # sums of the weights and of p^(2 - alpha), from which the norm and its slope follow
    mass = tl.zeros([ROWS], tl.float32)
    factors = tl.zeros([ROWS], tl.float32)
    mass, factors, kept_before = _sum_above(
        mass, factors, top, threshold, q, k_ptr, valid_ptr, index_ptr, none, k_row, slope, excess, first_row, queries,
        keys, 0, before,
        LISTED, MODE, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    mass, factors, kept = _sum_above(
        mass, factors, top, threshold, q, k_ptr, valid_ptr, index_ptr, kept_before, k_row, slope, excess, first_row,
        queries, keys, before, total,
        LISTED, MODE, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    return _rise(mass, factors, excess, MODE), kept_before, kept


@triton.jit(do_not_specialize=SIZES)
def _find_support(
    q_ptr, k_ptr, valid_ptr, excess_ptr, level_ptr, index_ptr, count_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, queries, keys, heads, scale, tolerance,
    MODE: tl.constexpr, STEPS: tl.constexpr, IN_REGISTERS: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # this pass reads no values, so the keys stand in their place
    row_tile, both, _, head, list_at, first_row, q, k_ptr, _, valid_ptr = own_rows(
        q_ptr, k_ptr, k_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, k_batch, k_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    index_ptr += list_at * tl.cdiv(keys, COLUMNS)
    excess = excess_of(excess_ptr, head, MODE)
    slope = excess * scale
    rows = first_row + tl.arange(0, ROWS)
    full, seen = columns_to_visit(row_tile, valid_ptr, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)

    largest = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
    largest = _largest_of_columns(
        largest, q, k_ptr, valid_ptr, k_row, first_row, queries, keys, 0, full,
        HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    largest = _largest_of_columns(
        largest, q, k_ptr, valid_ptr, k_row, first_row, queries, keys, full, seen,
        True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    # a maximum over a row leaves NaN out; infinity stays, and spoils the row as NaN does
    top = tl.max(tl.where(largest == largest, largest, float("inf")), 1)
    spoiled = top == float("inf")
    # a row without a key, like a spoiled one, has nothing near infinity: no weight, and no part in what goes on. Nor
    # have queries past the end, whose scores tie at zero and would keep every tile
    top = tl.where((top == float("-inf")) | (rows >= queries), float("inf"), top)
    threshold = tl.full([ROWS], -1.0, tl.float32)
    for _ in range(IN_REGISTERS):
        weights, factor = weigh((largest - top[:, None]) * slope - threshold[:, None], excess, MODE)
        threshold += _rise(tl.sum(weights, 1), tl.sum(factor, 1), excess, MODE)

    # a number that loops may change, where 0 is a constant
    none = row_tile * 0
    rise, before, total = _newton_pass(
        top, threshold, full, seen, q, k_ptr, valid_ptr, index_ptr, none, k_row, slope, excess, first_row, queries,
        keys,
        False, MODE, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    threshold += rise
    step = 1
    # the slowest row of the tile decides
    while (step < STEPS) & (tl.max(rise, 0) > tolerance):
        # the list was written by one thread and is read by all
        tl.debug_barrier()
        # it has two parts, tiles seen whole and tiles on the diagonal; both become shorter
        rise, before, total = _newton_pass(
            top, threshold, before, total, q, k_ptr, valid_ptr, index_ptr, none, k_row, slope, excess, first_row,
            queries, keys,
            True, MODE, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
        threshold += rise
        step += 1
    top = tl.where(spoiled, float("nan"), top)
    tl.store(level_ptr + 2 * both * queries + rows, top, mask=rows < queries)
    tl.store(level_ptr + (2 * both + 1) * queries + rows, threshold, mask=rows < queries)
    tl.store(count_ptr + list_at * 2, before)
    tl.store(count_ptr + list_at * 2 + 1, total)
