"""Gradients of attention over intervals: one kernel by queries, one by keys, each number with one writer."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .dropout import kept_along_keys, kept_along_queries, load_seed
from .launch import SIZES
from .pairs import bounds_of, by_distance, hide, put_rows, rows_of
from .tiles import LOG2E, narrow, own_tile


@triton.jit(do_not_specialize=SIZES)
def backward_queries(
    q_ptr, k_ptr, v_ptr, lower_ptr, upper_ptr, valid, bias, gradients, masses, deltas, of_collected, of_query, of_bias,
    seed_ptr, least, rescale, heads, bounds_stride, queries, keys, offset, back, ahead, scale, plain_scale,
    HAS_VALID: tl.constexpr, HIDE_SELF: tl.constexpr, HAS_BIAS: tl.constexpr, COLLECT: tl.constexpr,
    DROP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries, and of their biases by distance, along the keys that they see."""
    tile, row = own_tile(tl.cdiv(queries, ROWS))
    at = tile * ROWS + tl.arange(0, ROWS)
    lower, upper = bounds_of(lower_ptr, upper_ptr, row, bounds_stride, at, queries)
    q = rows_of(q_ptr, row, at, queries, HEAD_DIM, DIM)
    gradient = rows_of(gradients, row, at, queries, HEAD_DIM, DIM)
    mass = tl.load(masses + row * queries + at, mask=at < queries, other=float("inf"))
    delta = tl.load(deltas + row * queries + at, mask=at < queries, other=0.0)
    seed = load_seed(seed_ptr, DROP)
    slope = tl.zeros([ROWS, DIM], tl.float32)
    past, future = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    full_from, full_to = tl.max(lower, 0), tl.min(upper, 0)
    for start in range(tl.min(lower, 0) // COLUMNS * COLUMNS, tl.max(upper, 0), COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        k = rows_of(k_ptr, row, key_at, keys, HEAD_DIM, DIM)
        v = rows_of(v_ptr, row, key_at, keys, HEAD_DIM, DIM)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if HAS_BIAS:
            scores += by_distance(bias, row, at[:, None], key_at[None, :], queries, offset, back, ahead) * LOG2E
        if HAS_VALID or HIDE_SELF or start < full_from or start + COLUMNS > full_to:
            scores = hide(
                scores, valid, row, heads, keys, at[:, None], key_at[None, :], lower[:, None], upper[:, None],
                HAS_VALID, HIDE_SELF,
            )  # fmt: skip
        of_weights = tl.dot(gradient, tl.trans(v), input_precision=PRECISION)
        if COLLECT:
            of_weights += by_distance(of_collected, row, at[:, None], key_at[None, :], queries, offset, back, ahead)
        if DROP:
            kept = kept_along_keys(seed, least, at, start, row // heads, row % heads, COLUMNS)
            of_weights = tl.where(kept, of_weights * rescale, 0.0)
        of_scores = tl.exp2(scores - mass[:, None]) * (of_weights - delta[:, None])
        slope = tl.dot(narrow(of_scores, k.dtype), k, slope, input_precision=PRECISION)
        if HAS_BIAS:
            distance = key_at[None, :] - at[:, None] - offset
            # inner distances belong to one key each and are stored; the two clipped ends are sums
            past += tl.sum(tl.where(distance <= -back, of_scores, 0.0), 1)
            future += tl.sum(tl.where(distance >= ahead, of_scores, 0.0), 1)
            inside = (at < queries)[:, None] & (distance > -back) & (distance < ahead)
            place = of_bias + row * queries * (back + ahead + 1) + (at * (back + ahead + 1))[:, None]
            tl.store(place + distance + back, of_scores, mask=inside)
    put_rows(of_query, row, at, queries, slope * plain_scale, HEAD_DIM, DIM)
    if HAS_BIAS:
        ends = of_bias + (row * queries + at) * (back + ahead + 1)
        tl.store(ends, past, mask=at < queries)
        tl.store(ends + back + ahead, future, mask=at < queries)


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    q_ptr, k_ptr, v_ptr, lower_ptr, upper_ptr, begin_ptr, end_ptr, valid, bias, gradients, masses, deltas, of_collected,
    of_key, of_value, seed_ptr, least, rescale,
    heads, bounds_stride, queries, keys, offset, back, ahead, scale, plain_scale, edges_stride,
    HAS_VALID: tl.constexpr, HIDE_SELF: tl.constexpr, HAS_BIAS: tl.constexpr, COLLECT: tl.constexpr,
    DROP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values, along the queries from `begin` to `end` that see any of them."""
    tile, row = own_tile(tl.cdiv(keys, COLUMNS))
    key_at = tile * COLUMNS + tl.arange(0, COLUMNS)
    k = rows_of(k_ptr, row, key_at, keys, HEAD_DIM, DIM)
    v = rows_of(v_ptr, row, key_at, keys, HEAD_DIM, DIM)
    seed = load_seed(seed_ptr, DROP)
    of_k, of_v = tl.zeros([COLUMNS, DIM], tl.float32), tl.zeros([COLUMNS, DIM], tl.float32)
    # the queries that see a key of this tile, from the start of their row tile
    begin = tl.load(begin_ptr + row * edges_stride + tile) // ROWS * ROWS
    end = tl.load(end_ptr + row * edges_stride + tile)
    for start in range(begin, end, ROWS):
        at = start + tl.arange(0, ROWS)
        lower, upper = bounds_of(lower_ptr, upper_ptr, row, bounds_stride, at, queries)
        q = rows_of(q_ptr, row, at, queries, HEAD_DIM, DIM)
        gradient = rows_of(gradients, row, at, queries, HEAD_DIM, DIM)
        mass = tl.load(masses + row * queries + at, mask=at < queries, other=float("inf"))
        delta = tl.load(deltas + row * queries + at, mask=at < queries, other=0.0)
        # transposed: a row is a key, a column a query
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
        if HAS_BIAS:
            scores += by_distance(bias, row, at[None, :], key_at[:, None], queries, offset, back, ahead) * LOG2E
        # what lies past the last key is zero in k and v, and is not stored
        scores = hide(
            scores, valid, row, heads, keys, at[None, :], key_at[:, None], lower[None, :], upper[None, :],
            HAS_VALID, HIDE_SELF,
        )  # fmt: skip
        weights = tl.exp2(scores - mass[None, :])
        given = weights
        if DROP:
            kept = kept_along_queries(seed, least, at, tile * COLUMNS, row // heads, row % heads, COLUMNS)
            # scaled at the end
            given = tl.where(kept, weights, 0.0)
        of_v = tl.dot(narrow(given, gradient.dtype), gradient, of_v, input_precision=PRECISION)
        of_weights = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        if COLLECT:
            of_weights += by_distance(of_collected, row, at[None, :], key_at[:, None], queries, offset, back, ahead)
        if DROP:
            of_weights = tl.where(kept, of_weights * rescale, 0.0)
        of_scores = weights * (of_weights - delta[None, :])
        of_k = tl.dot(narrow(of_scores, q.dtype), q, of_k, input_precision=PRECISION)
    if DROP:
        of_v *= rescale
    put_rows(of_key, row, key_at, keys, of_k * plain_scale, HEAD_DIM, DIM)
    put_rows(of_value, row, key_at, keys, of_v, HEAD_DIM, DIM)
