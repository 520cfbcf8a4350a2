"""Gradients of rectified linear attention, on the tiles with a positive score: ds = dp where s > 0."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import SIZES, launch
from .tiles import (
    Tiles,
    constants,
    list_tiles,
    load_rows,
    narrow,
    own_columns,
    own_list,
    own_member,
    own_rows,
    rectified,
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
    keep: Tensor | None,
    used: Tensor,
    causal: bool,
    tiles: Tiles,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `used` is the map of the tiles that hold a positive score."""
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
    sizes = (queries, keys, heads, head_dim**-0.5)
    fixed = constants(query, key, keep, causal, tiles)
    # the map was written by the forward pass: 1 where a tile has a positive score
    rows = list_tiles(used, queries, keys, tiles, causal, by_rows=True)
    launch(
        _backward_queries, (triton.cdiv(queries, tiles.rows) * batch * heads,),
        query, key, value, keep, grad_output, to_query, rows.indices, rows.counts,
        *strides(query, key, value, grad_output, to_query), *sizes, warps=tiles.warps, stages=tiles.stages, **fixed,
    )  # fmt: skip
    columns = list_tiles(used, queries, keys, tiles, causal, by_rows=False)
    launch(
        _backward_keys, (triton.cdiv(keys, tiles.columns) * batch * key.shape[1],),
        query, key, value, keep, grad_output, to_key, to_value, columns.indices, columns.counts,
        *strides(query, key, value, grad_output, to_key, to_value), *sizes,
        warps=tiles.warps, stages=tiles.stages, **fixed,
    )  # fmt: skip
    return to_query, to_key, to_value


@triton.jit
def _query_tiles(
    dq, q, do, k_ptr, v_ptr, keep_ptr, index_ptr, k_row, v_row, first_row, queries, keys, first, last,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for at in range(first, last):
        column = tl.load(index_ptr + at).to(tl.int32) * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        # NaN counts as positive, as in autograd of relu
        positive = rectified(tl.dot(q, tl.trans(k), input_precision=PRECISION)) != 0.0
        if MASKED:
            # a hidden score may be positive: it lies in the tile, but the forward pass gave it no weight
            positive &= visible(keep_ptr, first_row, column, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
        # dp where s > 0: no sum over the row couples the scores, so the backward pass needs no statistics
        ds = tl.where(positive, tl.dot(do, tl.trans(v), input_precision=PRECISION), 0.0)
        dq = tl.dot(narrow(ds, k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=SIZES)
def _backward_queries(
    q_ptr, k_ptr, v_ptr, keep_ptr, do_ptr, dq_ptr, index_ptr, count_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    queries, keys, heads, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    _, _, batch, head, own, first_row, q, k_ptr, v_ptr, keep_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, keep_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_KEEP, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    index_ptr, full, total = own_list(index_ptr, count_ptr, own, tl.cdiv(keys, COLUMNS))
    do = load_rows(do_ptr + batch * do_batch + head * do_head, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    dq = tl.zeros([ROWS, DIM], tl.float32)
    dq = _query_tiles(
        dq, q, do, k_ptr, v_ptr, keep_ptr, index_ptr, k_row, v_row, first_row, queries, keys, 0, full,
        HAS_KEEP, False, HAS_KEEP, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    dq = _query_tiles(
        dq, q, do, k_ptr, v_ptr, keep_ptr, index_ptr, k_row, v_row, first_row, queries, keys, full, total,
        True, CAUSAL, HAS_KEEP, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    store_rows(dq_ptr + batch * dq_batch + head * dq_head, dq_row, first_row, queries, dq * scale, HEAD_DIM, DIM, ROWS)


@triton.jit
def _key_tiles(
    dk, dv, k, v, q_ptr, do_ptr, index_ptr, q_row, do_row, column, queries, keys, first, last,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for at in range(first, last):
        first_row = tl.load(index_ptr + at).to(tl.int32) * ROWS
        # rows past the end are zero in both, and give nothing
        q = load_rows(q_ptr, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        do = load_rows(do_ptr, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        weights = rectified(tl.dot(k, tl.trans(q), input_precision=PRECISION))
        if MASKED:
            columns = column + tl.arange(0, COLUMNS)
            rows = first_row + tl.arange(0, ROWS) + keys - queries
            # the causal mask alone: padded keys are dropped once, at the end
            weights = tl.where(columns[:, None] <= rows[None, :], weights, 0.0)
        dv = tl.dot(narrow(weights, do.dtype), do, dv, input_precision=PRECISION)
        ds = tl.where(weights != 0.0, tl.dot(v, tl.trans(do), input_precision=PRECISION), 0.0)
        dk = tl.dot(narrow(ds, q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def _backward_keys(
    q_ptr, k_ptr, v_ptr, keep_ptr, do_ptr, dk_ptr, dv_ptr, index_ptr, count_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    queries, keys, heads, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column_tile, batch, head, column, k, v = own_columns(
        k_ptr, v_ptr, k_batch, k_head, k_row, v_batch, v_head, v_row, keys, heads // GROUP, HEAD_DIM, DIM, COLUMNS
    )
    dk = tl.zeros([COLUMNS, DIM], tl.float32)
    dv = tl.zeros([COLUMNS, DIM], tl.float32)
    for member in range(GROUP):
        _, _, own_q, own_do, list_ptr, masked, total = own_member(
            member, q_ptr, do_ptr, index_ptr, count_ptr, q_batch, q_head, do_batch, do_head, column_tile, batch, head,
            queries, keys, heads, GROUP, ROWS, COLUMNS,
        )  # fmt: skip
        if CAUSAL:
            dk, dv = _key_tiles(
                dk, dv, k, v, own_q, own_do, list_ptr, q_row, do_row, column, queries, keys, 0, masked,
                True, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
            )  # fmt: skip
        dk, dv = _key_tiles(
            dk, dv, k, v, own_q, own_do, list_ptr, q_row, do_row, column, queries, keys, masked, total,
            False, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
    store_key_gradients(
        dk_ptr, dv_ptr, keep_ptr, dk * scale, dv * scale, batch, head, column,
        dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, keys, HAS_KEEP, HEAD_DIM, DIM, COLUMNS,
    )  # fmt: skip
