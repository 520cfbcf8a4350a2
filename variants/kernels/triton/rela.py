"""Rectified linear attention in one pass over the keys: no maximum, no sum, no statistics of a row.

Every tile that the mask leaves is visited: half of the scores are positive, and no input was found on which a tile has
none (NOTES.md). The backward pass goes by rows for the queries and by columns for keys and values, so that every number
has one writer and one order of summation.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from . import launch as triton_launch
from .dropout import arguments, kept_along_keys, load_seed
from .launch import SIZES, CompileCase, launch, prepared
from .rela_backward import backward, tiles_of_keys
from .tiles import (
    Tiles,
    constants,
    full_columns,
    load_rows,
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
    valid: Tensor | None = None,
    causal: bool = False,
    drop: WeightDropout | None = None,
    *,
    tiles: Tiles | None = None,
) -> Tensor:
    """Weighted sums of the values before the norm: relu(Q K^T / sqrt(head_dim)) V, float32 whatever the inputs.

    query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim), of one dtype; kv_heads
    divide heads, and nothing is repeated for them. valid (batch, keys), True = a real key, or None. `drop`:
    dropout of the weights, by the mask of `ops/dropout`. A query without a key that it may see gets zeros and gives no
    gradient. Products are those of the dtype, sums are float32,
    as is the gradient that is taken; with float16 a gradient or a weight beyond 65504 counts as 65504. Differentiable
    once, the same bits at every run. Ask `reason` first.
    Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units, eq. 4-6.
    """
    query, key, value, valid = prepared(query, key, value, valid, grouped=True)
    grouped, drops = key.shape[1] < query.shape[1], drop is not None
    of_keys = tiles or tiles_of_keys(query.dtype, query.shape[-1], grouped=grouped, drops=drops)
    tiles = tiles or tiles_for(query.dtype, query.shape[-1], drops=drops)
    return cast(Tensor, _ReLA.apply(query, key, value, valid, causal, drop, tiles, of_keys))


def tiles_for(dtype: torch.dtype, head_dim: int, *, drops: bool) -> Tiles:
    """Tile sizes that fit registers and shared memory as compiled for compute capability 9.0; not tuned on a GPU."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64 if dim <= 64 else 32, columns=32 if dim <= 128 else 16, warps=4)
    if dim <= 64:
        # the mask of dropout leaves the gradient of queries too few registers for 64 scores a thread
        return Tiles(rows=128, columns=64, warps=8 if drops else 4, stages=3)
    if dim == 128:
        return Tiles(rows=128, columns=64, warps=8, stages=2)
    return Tiles(rows=64, columns=64, warps=8, stages=2)


@triton.jit
def _forward_tiles(
    sums, q, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head,
    first_tile, last_tile,
    DROP: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first_tile, last_tile):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        # without the scale: it is positive, so it commutes with ReLU and is multiplied in once, at the end
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            scores = tl.where(seen, scores, 0.0)
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            kept = kept_along_keys(seed, least, rows, column, batch, head, COLUMNS)
            # what is kept is scaled at the end
            scores = tl.where(kept, scores, 0.0)
        sums = tl.dot(rectified(scores, v.dtype), v, sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=SIZES)
def _forward(
    q_ptr, k_ptr, v_ptr, valid_ptr, out_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row,
    queries, keys, heads, scale, least,
    DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tile, _, batch, head, _, first_row, q, k_ptr, v_ptr, valid_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    # tiles that all queries of the program see whole come first and need no look at the causal mask
    full = full_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    seen = seen_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    seed = load_seed(seed_ptr, DROP)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    sums = _forward_tiles(
        sums, q, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head, 0, full,
        DROP, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    sums = _forward_tiles(
        sums, q, k_ptr, v_ptr, valid_ptr, k_row, v_row, first_row, queries, keys, seed, least, batch, head, full, seen,
        DROP, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    out_ptr += batch * out_batch + head * out_head
    store_rows(out_ptr, out_row, first_row, queries, sums * scale, HEAD_DIM, DIM, ROWS)


class _ReLA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        causal: bool,
        drop: WeightDropout | None,
        tiles: Tiles,
        of_keys: Tiles,
    ) -> Tensor:
        batch, heads, queries, head_dim = query.shape
        # float32 out: the sum over keys grows with their number, and the norm that follows needs its digits
        sums = torch.empty_like(query, dtype=torch.float32)
        seed, least, rescale = arguments(drop)
        ctx.save_for_backward(query, key, value, valid)
        ctx.causal, ctx.drop, ctx.tiles = causal, drop, (tiles, of_keys)
        if sums.numel():
            launch(
                _forward, (triton.cdiv(queries, tiles.rows) * batch * heads,), query, key, value, valid, sums,
                seed, *strides(query, key, value, sums), queries, key.shape[2], heads, rescale * head_dim**-0.5, least,
                warps=tiles.warps, stages=tiles.stages, DROP=drop is not None,
                **constants(query, key, valid, causal, tiles),
            )  # fmt: skip
        return sums

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid = ctx.saved_tensors
        gradients = backward(grad_output, query, key, value, valid, ctx.causal, ctx.drop, *ctx.tiles)
        return *gradients, None, None, None, None, None


def _pass(dtype: torch.dtype, head_dim: int, causal: bool, padding: bool, kv_heads: int = 4, rate: float = 0.0) -> None:
    query, key, value = (
        torch.empty(2, heads, 4096, head_dim, dtype=dtype, device="meta", requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    valid = torch.empty(2, 4096, dtype=torch.bool, device="meta") if padding else None
    sums = rela_attention(query, key, value, valid, causal, WeightDropout.drawn(rate, query.device))
    sums.backward(torch.empty_like(sums))


COMPILE_CASES = (
    CompileCase(name="bf16 64 causal", run=lambda: _pass(torch.bfloat16, 64, True, False)),
    CompileCase(name="bf16 64 grouped", run=lambda: _pass(torch.bfloat16, 64, True, False, kv_heads=1)),
    CompileCase(name="bf16 128 causal padding", run=lambda: _pass(torch.bfloat16, 128, True, True)),
    CompileCase(name="bf16 64 causal dropout", run=lambda: _pass(torch.bfloat16, 64, True, False, rate=0.1)),
    CompileCase(name="bf16 128 causal dropout", run=lambda: _pass(torch.bfloat16, 128, True, False, rate=0.1)),
    CompileCase(name="fp16 64", run=lambda: _pass(torch.float16, 64, False, False)),
    CompileCase(name="fp32 64 causal", run=lambda: _pass(torch.float32, 64, True, False)),
    CompileCase(name="bf16 256", run=lambda: _pass(torch.bfloat16, 256, False, False)),
)
