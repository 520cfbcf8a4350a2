"""Rectified linear attention in one pass over the keys: no maximum, no sum, no statistics of a row.

Tiles without a positive score leave out their product with the values, and a byte remembers that for the backward
pass, which visits the other tiles only: by rows for the queries, by columns for keys and values, so that every number
has one writer and one order of summation.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import triton_launch
from .triton_launch import CompileCase, launch
from .triton_tiles import (
    Tiles,
    empty_map,
    first_full_row,
    full_columns,
    list_tiles,
    load_rows,
    narrow,
    padded,
    precision,
    seen_columns,
    store_rows,
    visible,
)

reason = triton_launch.reason


def rela_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    *,
    tiles: Tiles | None = None,
) -> Tensor:
    """Weighted sums of the values before the norm: relu(Q K^T / sqrt(head_dim)) V, float32 whatever the inputs.

    query (batch, heads, queries, head_dim), key and value (batch, heads, keys, head_dim), of one dtype; keep (batch,
    keys), True = a real key, or None. A query without a key that it may see gets zeros and gives no gradient. Products
    are those of the dtype, sums are float32, as is the gradient that is taken; with float16 a gradient or a weight
    beyond 65504 counts as 65504. Differentiable once, the same bits at every run. Ask `reason` first.
    Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units, eq. 4-6.
    """
    sums: Tensor = _ReLA.apply(query, key, value, keep, causal, tiles or tiles_for(query.dtype, query.shape[-1]))
    return sums


def tiles_for(dtype: torch.dtype, head_dim: int) -> Tiles:
    """Tile sizes that fit registers and shared memory as compiled for compute capability 9.0; not tuned on a GPU."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64, columns=32, warps=4) if dim <= 64 else Tiles(rows=32, columns=32, warps=4)
    if dim <= 64:
        return Tiles(rows=128, columns=64, warps=4, stages=3)
    if dim == 128:
        return Tiles(rows=128, columns=64, warps=8, stages=2)
    return Tiles(rows=64, columns=64, warps=8, stages=2)


@triton.jit
def _forward_tiles(
    sums, q, k_ptr, v_ptr, keep_ptr, map_ptr, k_row, v_row, first_row, queries, keys, first_tile, last_tile,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, RECORD: tl.constexpr, SKIP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first_tile, last_tile):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        weights = tl.maximum(tl.dot(q, tl.trans(k), input_precision=PRECISION), 0.0)
        if MASKED:
            seen = visible(keep_ptr, first_row, column, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
            weights = tl.where(seen, weights, 0.0)
        if SKIP:
            positive = tl.max(weights) > 0.0
            if RECORD:
                tl.store(map_ptr + tile, positive.to(tl.uint8))
            if positive:
                sums = tl.dot(narrow(weights, v.dtype), v, sums, input_precision=PRECISION)
        else:
            if RECORD:
                tl.store(map_ptr + tile, 1)
            sums = tl.dot(narrow(weights, v.dtype), v, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, keep_ptr, out_ptr, map_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row,
    queries, keys, heads, scale,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, RECORD: tl.constexpr, SKIP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile = tl.program_id(0)
    if CAUSAL:
        # the longest rows first
        row_tile = tl.num_programs(0) - 1 - row_tile
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    k_ptr += batch * k_batch + head * k_head
    v_ptr += batch * v_batch + head * v_head
    if HAS_KEEP:
        keep_ptr += batch * keys
    if RECORD:
        map_ptr += (both * tl.num_programs(0) + row_tile) * tl.cdiv(keys, COLUMNS)
    first_row = row_tile * ROWS
    q = load_rows(q_ptr + batch * q_batch + head * q_head, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    full = full_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    seen = seen_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    sums = _forward_tiles(
        sums, q, k_ptr, v_ptr, keep_ptr, map_ptr, k_row, v_row, first_row, queries, keys, 0, full,
        HAS_KEEP, False, HAS_KEEP, RECORD, SKIP, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    sums = _forward_tiles(
        sums, q, k_ptr, v_ptr, keep_ptr, map_ptr, k_row, v_row, first_row, queries, keys, full, seen,
        True, CAUSAL, HAS_KEEP, RECORD, SKIP, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    out_ptr += batch * out_batch + head * out_head
    store_rows(out_ptr, out_row, first_row, queries, sums * scale, HEAD_DIM, DIM, ROWS)


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
        positive = tl.dot(q, tl.trans(k), input_precision=PRECISION) > 0.0
        if MASKED:
            positive &= visible(keep_ptr, first_row, column, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
        ds = tl.where(positive, tl.dot(do, tl.trans(v), input_precision=PRECISION), 0.0)
        dq = tl.dot(narrow(ds, k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit
def _backward_queries(
    q_ptr, k_ptr, v_ptr, keep_ptr, do_ptr, dq_ptr, index_ptr, count_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    queries, keys, heads, scale,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile = tl.program_id(0)
    if CAUSAL:
        row_tile = tl.num_programs(0) - 1 - row_tile
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    k_ptr += batch * k_batch + head * k_head
    v_ptr += batch * v_batch + head * v_head
    if HAS_KEEP:
        keep_ptr += batch * keys
    list_at = both * tl.num_programs(0) + row_tile
    index_ptr += list_at * tl.cdiv(keys, COLUMNS)
    full = tl.load(count_ptr + list_at * 2)
    total = tl.load(count_ptr + list_at * 2 + 1)
    first_row = row_tile * ROWS
    q = load_rows(q_ptr + batch * q_batch + head * q_head, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
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
        weights = tl.maximum(tl.dot(k, tl.trans(q), input_precision=PRECISION), 0.0)
        if MASKED:
            columns = column + tl.arange(0, COLUMNS)
            rows = first_row + tl.arange(0, ROWS) + keys - queries
            weights = tl.where(columns[:, None] <= rows[None, :], weights, 0.0)
        dv = tl.dot(narrow(weights, do.dtype), do, dv, input_precision=PRECISION)
        ds = tl.where(weights > 0.0, tl.dot(v, tl.trans(do), input_precision=PRECISION), 0.0)
        dk = tl.dot(narrow(ds, q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def _backward_keys(
    q_ptr, k_ptr, v_ptr, keep_ptr, do_ptr, dk_ptr, dv_ptr, index_ptr, count_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    queries, keys, heads, scale,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column_tile = tl.program_id(0)
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    list_at = both * tl.num_programs(0) + column_tile
    index_ptr += list_at * tl.cdiv(queries, ROWS)
    masked = tl.load(count_ptr + list_at * 2)
    total = tl.load(count_ptr + list_at * 2 + 1)
    column = column_tile * COLUMNS
    q_ptr += batch * q_batch + head * q_head
    do_ptr += batch * do_batch + head * do_head
    k = load_rows(k_ptr + batch * k_batch + head * k_head, k_row, column, keys, True, HEAD_DIM, DIM, COLUMNS)
    v = load_rows(v_ptr + batch * v_batch + head * v_head, v_row, column, keys, True, HEAD_DIM, DIM, COLUMNS)
    dk = tl.zeros([COLUMNS, DIM], tl.float32)
    dv = tl.zeros([COLUMNS, DIM], tl.float32)
    if CAUSAL:
        dk, dv = _key_tiles(
            dk, dv, k, v, q_ptr, do_ptr, index_ptr, q_row, do_row, column, queries, keys, 0, masked,
            True, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
    dk, dv = _key_tiles(
        dk, dv, k, v, q_ptr, do_ptr, index_ptr, q_row, do_row, column, queries, keys, masked, total,
        False, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    if HAS_KEEP:
        # a padded key met only its own column, so it is enough to drop that
        columns = column + tl.arange(0, COLUMNS)
        kept = tl.load(keep_ptr + batch * keys + columns, mask=columns < keys, other=0) != 0
        dk = tl.where(kept[:, None], dk, 0.0)
        dv = tl.where(kept[:, None], dv, 0.0)
    store_rows(dk_ptr + batch * dk_batch + head * dk_head, dk_row, column, keys, dk * scale, HEAD_DIM, DIM, COLUMNS)
    store_rows(dv_ptr + batch * dv_batch + head * dv_head, dv_row, column, keys, dv * scale, HEAD_DIM, DIM, COLUMNS)


class _ReLA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, causal: bool, tiles: Tiles
    ) -> Tensor:
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        keep = None if keep is None else keep.contiguous()
        batch, heads, queries, head_dim = query.shape
        sums = torch.empty_like(query, dtype=torch.float32)
        record = any(ctx.needs_input_grad)
        used = empty_map(query, key, tiles) if record else None
        ctx.save_for_backward(query, key, value, keep, used)
        ctx.causal, ctx.tiles = causal, tiles
        if sums.numel():
            launch(
                _forward, (triton.cdiv(queries, tiles.rows), batch * heads), query, key, value, keep, sums, used,
                *_strides(query, key, value, sums), queries, key.shape[2], heads, head_dim**-0.5,
                warps=tiles.warps, stages=tiles.stages, RECORD=record, SKIP=True, **_constants(query, keep, causal, tiles),
            )  # fmt: skip
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keep, used = ctx.saved_tensors
        causal, tiles = ctx.causal, ctx.tiles
        batch, heads, queries, head_dim = query.shape
        keys = key.shape[2]
        if query.dtype == torch.float16:
            upstream = upstream.clamp(-65504.0, 65504.0)
        upstream = upstream.to(query.dtype).contiguous()
        to_query, to_key, to_value = (torch.empty_like(x) for x in (query, key, value))
        if not to_query.numel() or not to_key.numel():
            return to_query.zero_(), to_key.zero_(), to_value.zero_(), None, None, None
        constants = _constants(query, keep, causal, tiles)
        rows = list_tiles(used, queries, keys, tiles, causal, by_rows=True)
        launch(
            _backward_queries, (triton.cdiv(queries, tiles.rows), batch * heads),
            query, key, value, keep, upstream, to_query, rows.indices, rows.counts,
            *_strides(query, key, value, upstream, to_query), queries, keys, heads, head_dim**-0.5,
            warps=tiles.warps, stages=tiles.stages, **constants,
        )  # fmt: skip
        columns = list_tiles(used, queries, keys, tiles, causal, by_rows=False)
        launch(
            _backward_keys, (triton.cdiv(keys, tiles.columns), batch * heads),
            query, key, value, keep, upstream, to_key, to_value, columns.indices, columns.counts,
            *_strides(query, key, value, upstream, to_key, to_value), queries, keys, heads, head_dim**-0.5,
            warps=tiles.warps, stages=tiles.stages, **constants,
        )  # fmt: skip
        return to_query, to_key, to_value, None, None, None


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _constants(query: Tensor, keep: Tensor | None, causal: bool, tiles: Tiles) -> dict[str, Any]:
    head_dim = query.shape[-1]
    return {
        "CAUSAL": causal,
        "HAS_KEEP": keep is not None,
        "HEAD_DIM": head_dim,
        "DIM": padded(head_dim),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "PRECISION": precision(query.dtype),
    }


def _pass(dtype: torch.dtype, head_dim: int, causal: bool, padding: bool) -> None:
    query, key, value = (
        torch.empty(2, 4, 4096, head_dim, dtype=dtype, device="meta", requires_grad=True) for _ in range(3)
    )
    keep = torch.empty(2, 4096, dtype=torch.bool, device="meta") if padding else None
    sums = rela_attention(query, key, value, keep, causal)
    sums.backward(torch.empty_like(sums))


COMPILE_CASES = (
    CompileCase(name="bf16 64", run=lambda: _pass(torch.bfloat16, 64, False, False)),
    CompileCase(name="bf16 128 causal padding", run=lambda: _pass(torch.bfloat16, 128, True, True)),
    CompileCase(name="bf16 256 causal", run=lambda: _pass(torch.bfloat16, 256, True, False)),
    CompileCase(name="fp32 64 causal", run=lambda: _pass(torch.float32, 64, True, False)),
    CompileCase(name="fp32 256", run=lambda: _pass(torch.float32, 256, False, False)),
)
