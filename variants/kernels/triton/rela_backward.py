"""Gradients of rectified linear attention: ds = dp where s > 0."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from .dropout import arguments, kept_along_keys, kept_along_queries, load_seed
from .launch import SIZES, launch
from .tiles import (
    Tiles,
    constants,
    first_full_row,
    first_seen_row,
    full_columns,
    load_rows,
    narrow,
    own_columns,
    own_member,
    own_rows,
    padded,
    rectified,
    seen_columns,
    store_key_gradients,
    store_rows,
    strides,
    visible,
)


def backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None,
    causal: bool,
    drop: WeightDropout | None,
    tiles: Tiles,
    of_keys: Tiles,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `of_keys` are the tiles of the pass over columns."""
    batch, heads, queries, head_dim = query.shape
    keys = key.shape[2]
    to_query, to_key, to_value = (torch.empty_like(x) for x in (query, key, value))
    # an empty grid cannot be launched
    if not to_query.numel() or not to_key.numel():
        return to_query.zero_(), to_key.zero_(), to_value.zero_()
    if query.dtype == torch.float16:
        # the norm multiplies gradients by up to 1e4: beyond the range of float16 they would become infinite
        grad_output = grad_output.clamp(-65504.0, 65504.0)
    grad_output = grad_output.to(query.dtype).contiguous()
    seed, least, rescale = arguments(drop)
    sizes = (queries, keys, heads, rescale * head_dim**-0.5, least)
    launch(
        _backward_queries, (triton.cdiv(queries, tiles.rows) * batch * heads,),
        query, key, value, valid, grad_output, to_query, seed,
        *strides(query, key, value, grad_output, to_query), *sizes, warps=tiles.warps, stages=tiles.stages,
        DROP=drop is not None, **constants(query, key, valid, causal, tiles),
    )  # fmt: skip
    launch(
        _backward_keys, (triton.cdiv(keys, of_keys.columns) * batch * key.shape[1],),
        query, key, value, valid, grad_output, to_key, to_value, seed,
        *strides(query, key, value, grad_output, to_key, to_value), *sizes,
        warps=of_keys.warps, stages=of_keys.stages, DROP=drop is not None,
        **constants(query, key, valid, causal, of_keys),
    )  # fmt: skip
    return to_query, to_key, to_value


def tiles_of_keys(dtype: torch.dtype, head_dim: int, *, grouped: bool, drops: bool) -> Tiles:
    """Tile sizes of the pass over columns, by the counts of instructions and of stack as compiled; see NOTES.md."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64 if dim <= 64 else 32, columns=32 if dim <= 128 else 16, warps=4)
    if dim <= 64 and not grouped and not drops:
        return Tiles(rows=128, columns=64, warps=4, stages=3)
    if dim <= 128:
        return Tiles(rows=64, columns=128, warps=8, stages=2)
    return Tiles(rows=64, columns=64, warps=8, stages=2)


@triton.jit
def _query_tiles(
    dq, q, do, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head, first, last,
    DROP: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first, last):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            # a hidden score may be positive: it lies in the tile, but the forward pass gave it no weight
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            scores = tl.where(seen, scores, 0.0)
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            kept = kept_along_keys(seed, least, rows, column, batch, head, COLUMNS)
            scores = tl.where(kept, scores, 0.0)
        # dp where s > 0: no sum over the row couples the scores, so the backward pass needs no statistics. NaN counts
        # as positive, as in autograd of relu
        ds = tl.where(~(scores <= 0.0), tl.dot(do, tl.trans(v), input_precision=PRECISION), 0.0)
        dq = tl.dot(narrow(ds, k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=SIZES)
def _backward_queries(
    q_ptr, k_ptr, v_ptr, valid_ptr, do_ptr, dq_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    queries, keys, heads, scale, least,
    DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile, _, batch, head, _, first_row, q, k_ptr, v_ptr, valid_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    full = full_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    seen = seen_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    do = load_rows(do_ptr + batch * do_batch + head * do_head, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    seed = load_seed(seed_ptr, DROP)
    dq = tl.zeros([ROWS, DIM], tl.float32)
    dq = _query_tiles(
        dq, q, do, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head,
        0, full,
        DROP, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    dq = _query_tiles(
        dq, q, do, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head,
        full, seen,
        DROP, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    store_rows(dq_ptr + batch * dq_batch + head * dq_head, dq_row, first_row, queries, dq * scale, HEAD_DIM, DIM, ROWS)


@triton.jit
def _key_tiles(
    dk, dv, k, v, q_ptr, do_ptr, q_row, do_row, column, queries, keys, seed, least, batch, head, first, last,
    DROP: tl.constexpr, MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first, last):
        first_row = tile * ROWS
        # rows past the end are zero in both, and give nothing
        q = load_rows(q_ptr, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        do = load_rows(do_ptr, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if MASKED:
            columns = column + tl.arange(0, COLUMNS)
            rows = first_row + tl.arange(0, ROWS) + keys - queries
            # the causal mask alone: padded keys are dropped once, at the end
            scores = tl.where(columns[:, None] <= rows[None, :], scores, 0.0)
        if DROP:
            kept = kept_along_queries(seed, least, first_row + tl.arange(0, ROWS), column, batch, head, COLUMNS)
            scores = tl.where(kept, scores, 0.0)
        dv = tl.dot(rectified(scores, do.dtype), do, dv, input_precision=PRECISION)
        ds = tl.where(~(scores <= 0.0), tl.dot(v, tl.trans(do), input_precision=PRECISION), 0.0)
        dk = tl.dot(narrow(ds, q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def _backward_keys(
    q_ptr, k_ptr, v_ptr, valid_ptr, do_ptr, dk_ptr, dv_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    queries, keys, heads, scale, least,
    DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column_tile, batch, head, column, k, v = own_columns(
        k_ptr, v_ptr, k_batch, k_head, k_row, v_batch, v_head, v_row, keys, heads // GROUP, HEAD_DIM, DIM, COLUMNS
    )
    row_tiles = tl.cdiv(queries, ROWS)
    # whole row tiles come last; with a causal mask those that see a part of these keys stand before them
    full = tl.minimum(first_full_row(column_tile, queries, keys, CAUSAL, ROWS, COLUMNS), row_tiles)
    seed = load_seed(seed_ptr, DROP)
    dk = tl.zeros([COLUMNS, DIM], tl.float32)
    dv = tl.zeros([COLUMNS, DIM], tl.float32)
    for member in range(GROUP):
        _, of_query, own_q, own_do = own_member(
            member, q_ptr, do_ptr, q_batch, q_head, do_batch, do_head, batch, head, heads, GROUP
        )
        if CAUSAL:
            seen = first_seen_row(column_tile, queries, keys, ROWS, COLUMNS)
            dk, dv = _key_tiles(
                dk, dv, k, v, own_q, own_do, q_row, do_row, column, queries, keys, seed, least, batch, of_query, seen,
                full,
                DROP, True, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
            )  # fmt: skip
        dk, dv = _key_tiles(
            dk, dv, k, v, own_q, own_do, q_row, do_row, column, queries, keys, seed, least, batch, of_query, full,
            row_tiles,
            DROP, False, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
    store_key_gradients(
        dk_ptr, dv_ptr, valid_ptr, dk * scale, dv * scale, batch, head, column,
        dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, keys, HAS_VALID, HEAD_DIM, DIM, COLUMNS,
    )  # fmt: skip
