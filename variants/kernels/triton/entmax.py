"""Sparsemax and entmax attention on the tiles that hold weights.

Forward: `support` finds the threshold of each row and lists its tiles; the outputs are summed over these. For
the backward pass the same visit also leaves the mean of the values under the factors p^(2 - alpha), whose product with
the gradient of the output is all that couples the scores of a row, as softmax attention needs its output itself.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...contract import SelectionError
from ...ops.dropout import WeightDropout
from ...ops.first_derivative import OF_SIMPLEX, first_derivative_only
from . import launch as triton_launch
from .dropout import arguments, kept_along_keys, load_seed
from .entmax_backward import backward
from .launch import SIZES, CompileCase, capability, launch, prepared
from .support import SupportMap, excess_of, find_support, load_levels, weigh
from .tiles import (
    Tiles,
    constants,
    empty_map,
    load_rows,
    own_list,
    own_rows,
    padded,
    rectified,
    store_rows,
    strides,
    visible,
)


def reason(
    device: str, dtype: torch.dtype, head_dim: int, *, alpha: float | Tensor = 1.5, largest_head_dim: int = 256
) -> str | None:
    """None, or why these kernels cannot work on such tensors here. A tensor `alpha` is not looked at, but clamped."""
    if not isinstance(alpha, Tensor) and not triton_launch.LOWEST_ALPHA <= alpha <= 2.0:
        return f"Newton's method of the kernels takes alpha from {triton_launch.LOWEST_ALPHA} to 2, not {alpha}"
    return triton_launch.reason(device, dtype, head_dim, largest_head_dim=largest_head_dim)


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    valid: Tensor | None = None,
    causal: bool = False,
    drop: WeightDropout | None = None,
    *,
    tiles: Tiles | None = None,
) -> Tensor:
    """entmax(Q K^T / sqrt(head_dim), alpha) V, in the dtype of `value`, without a tensor of queries x keys.

    query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim), of one dtype; kv_heads
    divide heads, and nothing is repeated for them. valid (batch, keys), True = a real key, or None. alpha: a
    number from 1.01 to 2, where 2 is sparsemax and 1.5 has no logarithm, or (heads,), which is clamped to that range
    and gets a gradient. `drop`: dropout of the weights, by the mask of `ops/dropout`. A query without a key that it may
    see gets zeros and gives no gradient. Scores, thresholds and sums are float32. Differentiable once, the same bits at
    every run. Raises SelectionError for an alpha outside its range. Ask `reason` first.
    Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models; gradient in alpha: Correia, Niculae & Martins
    2019, Adaptively Sparse Transformers.
    """
    heads = query.shape[1]
    if isinstance(alpha, Tensor):
        if alpha.shape != (heads,):
            raise SelectionError(f"expected alpha of shape ({heads},), one per head, got {tuple(alpha.shape)}")
        fixed, excess = None, alpha.to(query.device, torch.float32) - 1.0
    elif not triton_launch.LOWEST_ALPHA <= alpha <= 2.0:
        lowest = triton_launch.LOWEST_ALPHA
        raise SelectionError(f"expected alpha from {lowest} to 2, got {alpha}; others have the eager path")
    elif alpha in (1.5, 2.0):
        fixed, excess = float(alpha), None
    else:
        fixed, excess = None, torch.full((heads,), alpha - 1.0, device=query.device)
    query, key, value, valid = prepared(query, key, value, valid, grouped=True)
    tiles = tiles or tiles_for(query.dtype, query.shape[-1])
    return cast(Tensor, _Entmax.apply(query, key, value, excess, fixed, valid, causal, drop, tiles))


def tiles_for(dtype: torch.dtype, head_dim: int) -> Tiles:
    """Tile sizes that fit registers and shared memory as compiled; not tuned on a GPU."""
    dim = padded(head_dim)
    if dtype == torch.float32:
        return Tiles(rows=64 if dim <= 64 else 32, columns=32 if dim <= 128 else 16, warps=4)
    if dim <= 128:
        # for Ampere 128 rows of a wide head are compiled with five KiB of stack
        rows = 128 if dim <= 64 or capability() >= 90 else 64
        return Tiles(rows=rows, columns=64, warps=8, stages=3 if dim <= 64 else 2)
    return Tiles(rows=64, columns=32, warps=8, stages=2)


@triton.jit
def _sum_tiles(
    sums, means, factors, top, threshold, q, k_ptr, v_ptr, valid_ptr, index_ptr, map_ptr, k_row, v_row, slope,
    excess, first_row, queries, keys, seed, least, batch, head, first, last,
    DROP: tl.constexpr, MODE: tl.constexpr, TRAIN: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for at in range(first, last):
        tile = tl.load(index_ptr + at).to(tl.int32)
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        above = (tl.dot(q, tl.trans(k), input_precision=PRECISION) - top[:, None]) * slope - threshold[:, None]
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            # any negative number: the map looks at what is positive only
            above = tl.where(seen, above, -1.0)
        weights, factor = weigh(above, excess, MODE)
        if TRAIN:
            # those of all keys: what is dropped still counts in the threshold
            factors += tl.sum(factor, 1)
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            kept = kept_along_keys(seed, least, rows, column, batch, head, COLUMNS)
            # both are positive already: this conversion to 16 bits is one that the compiler cannot move before the
            # selection, which would then take pairs apart
            weights = rectified(tl.where(kept, weights, 0.0), v.dtype)
            factor = rectified(tl.where(kept, factor, 0.0), v.dtype)
        # weights are at most 1, so they fit 16 bits; the sum is float32
        sums = tl.dot(weights.to(v.dtype), v, sums, input_precision=PRECISION)
        if TRAIN:
            means = tl.dot(factor.to(v.dtype), v, means, input_precision=PRECISION)
            # this tile is in use: the backward pass makes its lists of columns of these bytes
            tl.store(map_ptr + tile, 1)
    return sums, means, factors


@triton.jit(do_not_specialize=SIZES)
def _forward(
    q_ptr, k_ptr, v_ptr, valid_ptr, excess_ptr, level_ptr, index_ptr, count_ptr, out_ptr, mean_ptr, map_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row,
    queries, keys, heads, scale, least, rescale,
    DROP: tl.constexpr, MODE: tl.constexpr, TRAIN: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    _, both, batch, head, list_at, first_row, q, k_ptr, v_ptr, valid_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    index_ptr, full, total = own_list(index_ptr, count_ptr, list_at, tl.cdiv(keys, COLUMNS))
    if TRAIN:
        map_ptr += list_at * tl.cdiv(keys, COLUMNS)
    excess = excess_of(excess_ptr, head, MODE)
    # thresholds are of (alpha - 1) times the score, so the scale and alpha - 1 are one factor
    slope = excess * scale
    rows = first_row + tl.arange(0, ROWS)
    top, threshold = load_levels(level_ptr, both, rows, queries)
    seed = load_seed(seed_ptr, DROP)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    factors = tl.zeros([ROWS], tl.float32)
    if TRAIN:
        means = tl.zeros([ROWS, DIM], tl.float32)
    else:
        means = factors
    sums, means, factors = _sum_tiles(
        sums, means, factors, top, threshold, q, k_ptr, v_ptr, valid_ptr, index_ptr, map_ptr, k_row, v_row, slope,
        excess, first_row, queries, keys, seed, least, batch, head, 0, full,
        DROP, MODE, TRAIN, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    sums, means, factors = _sum_tiles(
        sums, means, factors, top, threshold, q, k_ptr, v_ptr, valid_ptr, index_ptr, map_ptr, k_row, v_row, slope,
        excess, first_row, queries, keys, seed, least, batch, head, full, total,
        DROP, MODE, TRAIN, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    if DROP:
        # the means stay as they are: the backward pass multiplies by the factor once, at its end
        sums *= rescale
    # a row that is spoiled has no weights; left at that, what diverged would come out as zeros
    sums = tl.where((top == top)[:, None], sums, float("nan"))
    # output and means have the same strides: one is made like the other
    offset = batch * out_batch + head * out_head
    store_rows(out_ptr + offset, out_row, first_row, queries, sums, HEAD_DIM, DIM, ROWS)
    if TRAIN:
        # a row without a key has no factors and a mean of zero
        means = tl.where((top == top)[:, None], means / tl.maximum(factors, 1e-30)[:, None], float("nan"))
        store_rows(mean_ptr + offset, out_row, first_row, queries, means, HEAD_DIM, DIM, ROWS)


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        excess: Tensor | None,
        alpha: float | None,
        valid: Tensor | None,
        causal: bool,
        drop: WeightDropout | None,
        tiles: Tiles,
    ) -> Tensor:
        batch, heads, queries, head_dim = query.shape
        output = torch.empty_like(query)
        if not output.numel():
            ctx.save_for_backward(query, key, value, excess)
            return output
        sparse_map = SupportMap(alpha=alpha, excess=excess)
        support = find_support(query, key, valid, causal, sparse_map, tiles)
        # dropout is for training: one form less to compile
        train = any(ctx.needs_input_grad) or drop is not None
        # the mean of the values under p^(2 - alpha): its product with the output's gradient is delta of the backward
        # pass
        means = torch.empty_like(output) if train else None
        used = empty_map(query, key, tiles) if train else None
        seed, *rates = arguments(drop)
        launch(
            _forward, (triton.cdiv(queries, tiles.rows) * batch * heads,), query, key, value, valid, excess,
            support.levels, support.lists.indices, support.lists.counts, output, means, used,
            seed, *strides(query, key, value, output), queries, key.shape[2], heads, head_dim**-0.5, *rates,
            warps=tiles.warps, stages=tiles.stages, DROP=drop is not None, MODE=sparse_map.mode, TRAIN=train,
            **constants(query, key, valid, causal, tiles),
        )  # fmt: skip
        lists = support.lists
        ctx.save_for_backward(
            query, key, value, excess, valid, support.levels, lists.indices, lists.counts, means, used
        )
        ctx.alpha, ctx.causal, ctx.drop, ctx.tiles = alpha, causal, drop, tiles
        return output

    @staticmethod
    @first_derivative_only(OF_SIMPLEX)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, excess, *rest = ctx.saved_tensors
        if not rest:
            zeros = (None if x is None else torch.zeros_like(x) for x in (query, key, value, excess))
            return *zeros, None, None, None, None, None
        valid, levels, indices, counts, means, used = rest
        gradients = backward(
            grad_output, query, key, value, SupportMap(alpha=ctx.alpha, excess=excess), valid,
            levels, indices, counts, means, used, ctx.causal, ctx.drop, ctx.tiles, of_alpha=ctx.needs_input_grad[3],
        )  # fmt: skip
        return *gradients, None, None, None, None, None


def _pass(
    dtype: torch.dtype,
    head_dim: int,
    causal: bool,
    padding: bool,
    alpha: float | Tensor,
    kv_heads: int = 4,
    rate: float = 0.0,
) -> None:
    query, key, value = (
        torch.empty(2, heads, 4096, head_dim, dtype=dtype, device="meta", requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    valid = torch.empty(2, 4096, dtype=torch.bool, device="meta") if padding else None
    output = entmax_attention(query, key, value, alpha, valid, causal, WeightDropout.drawn(rate, query.device))
    output.backward(torch.empty_like(output))


def _learned() -> Tensor:
    return torch.empty(4, device="meta", requires_grad=True)


COMPILE_CASES = (
    CompileCase(name="sparsemax bf16 128 padding", run=lambda: _pass(torch.bfloat16, 128, False, True, 2.0)),
    CompileCase(name="entmax15 bf16 64 causal", run=lambda: _pass(torch.bfloat16, 64, True, False, 1.5)),
    CompileCase(name="entmax15 bf16 64 dropout", run=lambda: _pass(torch.bfloat16, 64, True, False, 1.5, rate=0.1)),
    CompileCase(name="entmax15 bf16 128 causal", run=lambda: _pass(torch.bfloat16, 128, True, False, 1.5)),
    CompileCase(name="entmax15 bf16 128 dropout", run=lambda: _pass(torch.bfloat16, 128, True, False, 1.5, rate=0.1)),
    CompileCase(name="entmax15 bf16 256", run=lambda: _pass(torch.bfloat16, 256, False, False, 1.5)),
    CompileCase(name="entmax15 bf16 64 grouped", run=lambda: _pass(torch.bfloat16, 64, True, False, 1.5, kv_heads=1)),
    CompileCase(name="learned alpha bf16 64", run=lambda: _pass(torch.bfloat16, 64, False, False, _learned())),
)
