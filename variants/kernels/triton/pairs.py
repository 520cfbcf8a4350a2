"""Pairs of queries and keys as the kernels for intervals see them: their rows, their bounds, their distance."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import narrow


@triton.jit
def rows_of(source, row, at, count, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Rows `at` of (rows, count, HEAD_DIM), zeros outside."""
    column = tl.arange(0, DIM)
    inside = (at < count)[:, None] & (column < HEAD_DIM)[None, :]
    # one wide address and narrow offsets: wide offsets of a whole tile would fill the registers
    base = source + row * count * HEAD_DIM
    return tl.load(base + at[:, None] * HEAD_DIM + column[None, :], mask=inside, other=0.0)


@triton.jit
def put_rows(target, row, at, count, values, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Writes rows `at` of (rows, count, HEAD_DIM), those that exist."""
    column = tl.arange(0, DIM)
    inside = (at < count)[:, None] & (column < HEAD_DIM)[None, :]
    place = target + row * count * HEAD_DIM + at[:, None] * HEAD_DIM + column[None, :]
    tl.store(place, narrow(values, target.dtype.element_ty), mask=inside)


@triton.jit
def by_distance(source, row, i, j, queries, offset, back, ahead):
    """The entry of each pair's distance, shaped as the pairs; i and j are (rows, 1) and (1, columns), or turned."""
    column = tl.minimum(tl.maximum(j - i - offset, -back), ahead) + back
    columns = back + ahead + 1
    place = source + row * queries * columns + i * columns + column
    return tl.load(place, mask=(i < queries) & (j >= 0), other=0.0)


@triton.jit
def hide(scores, valid, row, heads, keys, i, j, lower, upper, HAS_VALID: tl.constexpr, HIDE_SELF: tl.constexpr):
    """Scores, -infinity where a query may not see a key."""
    seen = (j >= lower) & (j < upper)
    if HIDE_SELF:
        # a query whose interval has one key only keeps the view of itself
        seen = seen & ((j != i) | (upper - lower <= 1))
    if HAS_VALID:
        seen = seen & (tl.load(valid + row // heads * keys + j, mask=j < keys, other=0) != 0)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def bounds_of(lower_ptr, upper_ptr, row, bounds_stride, at, queries):
    """Bounds of the queries `at`; those past the end have that of the last."""
    # bounds shared by all (batch, head) have a stride of 0
    place = row * bounds_stride + tl.minimum(at, queries - 1)
    return tl.load(lower_ptr + place), tl.load(upper_ptr + place)
