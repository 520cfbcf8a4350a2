"""Gradients of attention with a map: along the keys those of queries, along the queries those of keys and values.

So every number has one writer and one order of summation.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from ...ops.written import Written
from .dropout import arguments, kept_along_keys, kept_along_queries, load_seed
from .launch import SIZES, capability, launch
from .tiles import (
    Tiles,
    columns_to_visit,
    constants,
    converted,
    first_full_row,
    first_seen_row,
    load_rows,
    narrow,
    own_columns,
    own_member,
    own_rows,
    padded,
    rows_to_visit,
    store_key_gradients,
    store_rows,
    strides,
    visible,
)
from .written import functions


def backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    valid: Tensor | None,
    causal: bool,
    written: Written,
    drop: WeightDropout | None,
    homogeneous: bool,
    numbers: Tensor,
    inverses: Tensor,
    of_sums: Tensor,
    tiles: Tiles,
    of_keys: Tiles,
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor | None]:
    """Gradients of query, key and value, of learned numbers and of the sink, the last two for each query.

    `numbers` of the backward; `inverses`: one over the sum of each query; `of_sums`: the gradients of the sums.
    """
    batch, heads, queries, head_dim = query.shape
    keys, learned = key.shape[2], len(written.learned)
    to_query, to_key, to_value = (torch.empty_like(x) for x in (query, key, value))
    to_learned = inverses.new_zeros(learned, *inverses.shape)
    to_sinks = None if sinks is None else torch.zeros_like(inverses)
    # an empty grid cannot be launched
    if not to_query.numel() or not to_key.numel():
        return (to_query.zero_(), to_key.zero_(), to_value.zero_()), to_learned, to_sinks
    if query.dtype == torch.float16:
        # a norm may multiply gradients by 1e4: beyond the range of float16 they would become infinite
        grad_output = grad_output.clamp(-65504.0, 65504.0)
    grad_output = grad_output.to(query.dtype).contiguous()
    seed, least, rescale = arguments(drop)
    sizes = queries, keys, heads, inverses.numel(), head_dim**-0.5, rescale, least
    own = functions(written)
    shared = {
        **{"DIFFERENTIATE": own.differentiate, "SUMS": written.sums, "SCALED": not homogeneous},
        **{"DROP": drop is not None},
    }
    launch(
        _backward_queries, (triton.cdiv(queries, tiles.rows) * batch * heads,),
        query, key, value, valid, grad_output, to_query, sinks, numbers, inverses, of_sums, to_learned, to_sinks, seed,
        *strides(query, key, value, grad_output, to_query), *sizes, warps=tiles.warps, stages=tiles.stages,
        LEARN=own.learn, LEARNED=learned, PLACES=triton.next_power_of_2(max(learned, 1)), HAS_SINK=sinks is not None,
        **shared, **constants(query, key, valid, causal, tiles),
    )  # fmt: skip
    launch(
        _backward_keys, (triton.cdiv(keys, of_keys.columns) * batch * key.shape[1],),
        query, key, value, valid, grad_output, to_key, to_value, numbers, inverses, of_sums, seed,
        *strides(query, key, value, grad_output, to_key, to_value), *sizes, warps=of_keys.warps, stages=of_keys.stages,
        RECTIFIED=own.is_rectified, RESTS=own.rests, **shared, **constants(query, key, valid, causal, of_keys),
    )  # fmt: skip
    return (to_query, to_key, to_value), to_learned, to_sinks


def tiles_of_keys(dtype: torch.dtype, head_dim: int, *, grouped: bool, drops: bool) -> Tiles:
    """Tile sizes of the pass over columns, by the counts of instructions and of stack as compiled; see NOTES.md."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64 if dim <= 64 else 32, columns=32 if dim <= 128 else 16, warps=4)
    # for Ampere, Triton 3.9 compiles these four warps with seven KiB of stack where there is a sink
    if dim <= 64 and not grouped and not drops and capability() >= 90:
        return Tiles(rows=128, columns=64, warps=4, stages=3)
    if dim <= 128:
        # for Ampere the mask of dropout and 128 columns of a wide head are compiled with seven KiB of stack
        narrow = dim == 128 and drops and capability() < 90
        return Tiles(rows=64, columns=64 if narrow else 128, warps=8, stages=2)
    # 64 rows take 257 KiB of shared memory on compute capability 10.0, which has 227, and more stack on 9.0
    return Tiles(rows=32, columns=64, warps=8, stages=2)


@triton.jit
def _query_tiles(
    dq, learned, q, do, factor, of_sum, k_ptr, v_ptr, valid_ptr, numbers, at, inside, plane, k_row, v_row, first_row,
    queries, keys, seed, least, batch, head, scale, first, last,
    DIFFERENTIATE: tl.constexpr, LEARN: tl.constexpr, LEARNED: tl.constexpr, PLACES: tl.constexpr, SUMS: tl.constexpr,
    SCALED: tl.constexpr,
    DROP: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first, last):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if SCALED:
            scores *= scale
        of_weight = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if SUMS:
            of_weight *= factor[:, None]
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            of_weight = tl.where(kept_along_keys(seed, least, rows, column, batch, head, COLUMNS), of_weight, 0.0)
        _, ds = DIFFERENTIATE(scores, of_weight, of_sum[:, None], numbers, at, inside, plane)
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            ds = tl.where(seen, ds, 0.0)
        if LEARNED:
            more = LEARN(
                scores, of_weight, of_sum[:, None], seen if MASKED else inside, numbers, at, inside, plane, PLACES
            )
            learned += more
        dq = tl.dot(narrow(ds, k.dtype), k, dq, input_precision=PRECISION)
    return dq, learned


@triton.jit(do_not_specialize=SIZES)
def _backward_queries(
    q_ptr, k_ptr, v_ptr, valid_ptr, do_ptr, dq_ptr, sink_ptr, numbers, inverse_ptr, of_sum_ptr, to_learned_ptr,
    to_sink_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    queries, keys, heads, plane, scale, rescale, least,
    DIFFERENTIATE: tl.constexpr, LEARN: tl.constexpr, LEARNED: tl.constexpr, PLACES: tl.constexpr,
    SUMS: tl.constexpr, HAS_SINK: tl.constexpr, SCALED: tl.constexpr,
    DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile, both, batch, head, _, first_row, q, k_ptr, v_ptr, valid_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    rows = first_row + tl.arange(0, ROWS)
    inside = rows < queries
    at = both * queries + rows
    full, seen = columns_to_visit(row_tile, valid_ptr, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
    do = load_rows(do_ptr + batch * do_batch + head * do_head, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    seed = load_seed(seed_ptr, DROP)
    factor = tl.full([ROWS], 1.0, tl.float32)
    of_sum = tl.zeros([ROWS], tl.float32)
    if SUMS:
        factor = tl.load(inverse_ptr + at, mask=inside, other=0.0) * rescale
        of_sum = tl.load(of_sum_ptr + at, mask=inside, other=0.0)
    dq = tl.zeros([ROWS, DIM], tl.float32)
    # a power of two of places for the gradients of numbers that are learned
    learned = tl.zeros([PLACES, ROWS], tl.float32)
    if HAS_SINK:
        sink = tl.zeros([ROWS, 1], tl.float32) + tl.load(sink_ptr + head)
        nothing = tl.zeros([ROWS, 1], tl.float32)
        _, to_sink = DIFFERENTIATE(sink, nothing, of_sum[:, None], numbers, at[:, None], inside[:, None], plane)
        tl.store(to_sink_ptr + at, tl.sum(to_sink, 1), mask=inside)
        if LEARNED:
            learned += LEARN(
                sink, nothing, of_sum[:, None], inside[:, None], numbers, at[:, None], inside[:, None], plane, PLACES
            )
    dq, learned = _query_tiles(
        dq, learned, q, do, factor, of_sum, k_ptr, v_ptr, valid_ptr, numbers, at[:, None], inside[:, None], plane,
        k_row, v_row, first_row, queries, keys, seed, least, batch, head, scale, 0, full,
        DIFFERENTIATE, LEARN, LEARNED, PLACES, SUMS, SCALED,
        DROP, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    dq, learned = _query_tiles(
        dq, learned, q, do, factor, of_sum, k_ptr, v_ptr, valid_ptr, numbers, at[:, None], inside[:, None], plane,
        k_row, v_row, first_row, queries, keys, seed, least, batch, head, scale, full, seen,
        DIFFERENTIATE, LEARN, LEARNED, PLACES, SUMS, SCALED,
        DROP, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    # gradients are linear in those of the weights: a factor that all share comes at the end
    whole = 1.0 if SUMS else rescale
    dq_ptr += batch * dq_batch + head * dq_head
    store_rows(dq_ptr, dq_row, first_row, queries, dq * (scale * whole), HEAD_DIM, DIM, ROWS)
    if LEARNED:
        place = tl.arange(0, PLACES)[:, None]
        tl.store(
            to_learned_ptr + place * plane + at[None, :], learned * whole, mask=(place < LEARNED) & inside[None, :]
        )


@triton.jit
def _key_tiles(
    dk, dv, k, v, q_ptr, do_ptr, inverse_ptr, of_sum_ptr, numbers, plane, q_row, do_row, both, column, queries, keys,
    seed, least, batch, head, scale, rescale, first, last,
    DIFFERENTIATE: tl.constexpr, SUMS: tl.constexpr, SCALED: tl.constexpr, RECTIFIED: tl.constexpr,
    RESTS: tl.constexpr, DROP: tl.constexpr, MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first, last):
        first_row = tile * ROWS
        rows = first_row + tl.arange(0, ROWS)
        inside = rows < queries
        at = both * queries + rows
        q = load_rows(q_ptr, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        do = load_rows(do_ptr, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        of_sum = tl.zeros([ROWS], tl.float32)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if SCALED:
            scores *= scale
        of_weight = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if SUMS:
            factor = tl.load(inverse_ptr + at, mask=inside, other=0.0) * rescale
            of_sum = tl.load(of_sum_ptr + at, mask=inside, other=0.0)
            of_weight *= factor[None, :]
        # rows past the end have zeros for scores and gradients; most maps leave them finite, and nothing comes of them
        seen = tl.full([COLUMNS, ROWS], True, tl.int1) if RESTS else inside[None, :]
        if MASKED:
            columns = column + tl.arange(0, COLUMNS)
            seen = seen & (columns[:, None] <= (rows + keys - queries)[None, :])
        if DROP:
            kept = kept_along_queries(seed, least, rows, column, batch, head, COLUMNS)
            of_weight = tl.where(kept, of_weight, 0.0)
        weight, ds = DIFFERENTIATE(scores, of_weight, of_sum[None, :], numbers, at[None, :], inside[None, :], plane)
        if SUMS:
            weight *= factor[None, :]
        if MASKED or not RESTS:
            weight, ds = tl.where(seen, weight, 0.0), tl.where(seen, ds, 0.0)
        if DROP:
            weight = tl.where(kept, weight, 0.0)
        dv = tl.dot(converted(weight, do.dtype, RECTIFIED), do, dv, input_precision=PRECISION)
        dk = tl.dot(narrow(ds, q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def _backward_keys(
    q_ptr, k_ptr, v_ptr, valid_ptr, do_ptr, dk_ptr, dv_ptr, numbers, inverse_ptr, of_sum_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    queries, keys, heads, plane, scale, rescale, least,
    DIFFERENTIATE: tl.constexpr, SUMS: tl.constexpr, SCALED: tl.constexpr, RECTIFIED: tl.constexpr,
    RESTS: tl.constexpr, DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column_tile, batch, head, column, k, v = own_columns(
        k_ptr, v_ptr, k_batch, k_head, k_row, v_batch, v_head, v_row, keys, heads // GROUP, HEAD_DIM, DIM, COLUMNS
    )
    row_tiles = rows_to_visit(valid_ptr, batch, column, keys, tl.cdiv(queries, ROWS), HAS_VALID, COLUMNS)
    # whole row tiles come last; with a causal mask those that see a part of these keys stand before them
    full = tl.minimum(first_full_row(column_tile, queries, keys, CAUSAL, ROWS, COLUMNS), row_tiles)
    seed = load_seed(seed_ptr, DROP)
    dk = tl.zeros([COLUMNS, DIM], tl.float32)
    dv = tl.zeros([COLUMNS, DIM], tl.float32)
    for member in range(GROUP):
        both, of_query, own_q, own_do = own_member(
            member, q_ptr, do_ptr, q_batch, q_head, do_batch, do_head, batch, head, heads, GROUP
        )
        if CAUSAL:
            seen = first_seen_row(column_tile, queries, keys, ROWS, COLUMNS)
            dk, dv = _key_tiles(
                dk, dv, k, v, own_q, own_do, inverse_ptr, of_sum_ptr, numbers, plane, q_row, do_row, both, column,
                queries, keys, seed, least, batch, of_query, scale, rescale, seen, full,
                DIFFERENTIATE, SUMS, SCALED, RECTIFIED, RESTS, DROP, True, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
            )  # fmt: skip
        dk, dv = _key_tiles(
            dk, dv, k, v, own_q, own_do, inverse_ptr, of_sum_ptr, numbers, plane, q_row, do_row, both, column,
            queries, keys, seed, least, batch, of_query, scale, rescale, full, row_tiles,
            DIFFERENTIATE, SUMS, SCALED, RECTIFIED, RESTS, DROP, False, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
    whole = 1.0 if SUMS else rescale
    store_key_gradients(
        dk_ptr, dv_ptr, valid_ptr, dk * (scale * whole), dv * (whole if SCALED else scale * whole), batch, head, column,
        dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, keys, HAS_VALID, HEAD_DIM, DIM, COLUMNS,
    )  # fmt: skip
