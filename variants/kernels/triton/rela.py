"""Rectified linear attention in one pass over the keys: no maximum, no sum, no statistics of a row.

Tiles without a positive score leave out their product with the values, and a byte remembers that for the backward
pass, which visits the other tiles only: by rows for the queries, by columns for keys and values, so that every number
has one writer and one order of summation.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from . import launch as triton_launch
from .launch import SIZES, CompileCase, launch, prepared
from .rela_backward import backward
from .tiles import (
    Tiles,
    constants,
    empty_map,
    full_columns,
    load_rows,
    narrow,
    own_rows,
    padded,
    rectified,
    seen_columns,
    store_rows,
    strides,
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

    query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim), of one dtype; kv_heads
    divide heads, and nothing is repeated for them. keep (batch, keys), True = a real key, or None. A query
    without a key that it may see gets zeros and gives no gradient. Products are those of the dtype, sums are float32,
    as is the gradient that is taken; with float16 a gradient or a weight beyond 65504 counts as 65504. Differentiable
    once, the same bits at every run. Ask `reason` first.
    Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units, eq. 4-6.
    """
    query, key, value, keep = prepared(query, key, value, keep, grouped=True)
    return cast(Tensor, _ReLA.apply(query, key, value, keep, causal, tiles or tiles_for(query.dtype, query.shape[-1])))


def tiles_for(dtype: torch.dtype, head_dim: int) -> Tiles:
    """Tile sizes that fit registers and shared memory as compiled for compute capability 9.0; not tuned on a GPU."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64 if dim <= 64 else 32, columns=32 if dim <= 128 else 16, warps=4)
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
        # without the scale: it is positive, so it commutes with ReLU and is multiplied in once, at the end
        weights = rectified(tl.dot(q, tl.trans(k), input_precision=PRECISION))
        if MASKED:
            seen = visible(keep_ptr, first_row, column, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
            weights = tl.where(seen, weights, 0.0)
        if SKIP:
            # one reduction over the tile against a product with the values: worth it where tiles are empty, see
            # NOTES.md
            # not `> 0`, which NaN is not
            positive = tl.max((weights != 0.0).to(tl.int32)) > 0
            if RECORD:
                tl.store(map_ptr + tile, positive.to(tl.uint8))
            if positive:
                sums = tl.dot(narrow(weights, v.dtype), v, sums, input_precision=PRECISION)
        else:
            if RECORD:
                tl.store(map_ptr + tile, 1)
            sums = tl.dot(narrow(weights, v.dtype), v, sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=SIZES)
def _forward(
    q_ptr, k_ptr, v_ptr, keep_ptr, out_ptr, map_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row,
    queries, keys, heads, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, RECORD: tl.constexpr, SKIP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile, _, batch, head, own, first_row, q, k_ptr, v_ptr, keep_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, keep_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_KEEP, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    if RECORD:
        map_ptr += own * tl.cdiv(keys, COLUMNS)
    # tiles that all queries of the program see whole come first and need no look at the causal mask
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


class _ReLA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, causal: bool, tiles: Tiles
    ) -> Tensor:
        batch, heads, queries, head_dim = query.shape
        # float32 out: the sum over keys grows with their number, and the norm that follows needs its digits
        sums = torch.empty_like(query, dtype=torch.float32)
        record = any(ctx.needs_input_grad)
        used = empty_map(query, key, tiles) if record else None
        ctx.save_for_backward(query, key, value, keep, used)
        ctx.causal, ctx.tiles = causal, tiles
        if sums.numel():
            launch(
                _forward, (triton.cdiv(queries, tiles.rows) * batch * heads,), query, key, value, keep, sums, used,
                *strides(query, key, value, sums), queries, key.shape[2], heads, head_dim**-0.5,
                warps=tiles.warps, stages=tiles.stages, RECORD=record, SKIP=True,
                **constants(query, key, keep, causal, tiles),
            )  # fmt: skip
        return sums

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keep, used = ctx.saved_tensors
        gradients = backward(grad_output, query, key, value, keep, used, ctx.causal, ctx.tiles)
        return *gradients, None, None, None


def _pass(dtype: torch.dtype, head_dim: int, causal: bool, padding: bool, kv_heads: int = 4) -> None:
    query, key, value = (
        torch.empty(2, heads, 4096, head_dim, dtype=dtype, device="meta", requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    keep = torch.empty(2, 4096, dtype=torch.bool, device="meta") if padding else None
    sums = rela_attention(query, key, value, keep, causal)
    sums.backward(torch.empty_like(sums))


COMPILE_CASES = (
    CompileCase(name="bf16 64 causal", run=lambda: _pass(torch.bfloat16, 64, True, False)),
    CompileCase(name="bf16 64 grouped", run=lambda: _pass(torch.bfloat16, 64, True, False, kv_heads=1)),
    CompileCase(name="bf16 128 causal padding", run=lambda: _pass(torch.bfloat16, 128, True, True)),
    CompileCase(name="bf16 256", run=lambda: _pass(torch.bfloat16, 256, False, False)),
)
