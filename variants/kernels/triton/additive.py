"""Additive (Bahdanau) attention in one pass over the keys: nothing of size queries by keys is kept, nor times hidden.

With E = exp(2 W q) and F = exp(2 U k), tanh(W q + U k) = 1 - 2 / (1 + E F): one reciprocal and two multiplications for
each pair and hidden unit, where tanh itself would be two special functions. The constant is the same for all keys, so
the softmax does not see it. The slope is 4 r (1 - r) with the same r = 1 / (1 + E F).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.first_derivative import OF_ADDITIVE, first_derivative_only
from .launch import SIZES, CompileCase, launch, prepared
from .tiles import (
    LOG2E,
    load_rows,
    narrow,
    own_tile,
    padded,
    seen_columns,
    softmax_end,
    softmax_step,
    store_rows,
    visible,
)

# exp(2 * 43) is still a float32; a product that is none becomes infinity or zero, where tanh is one or minus one anyway
_LARGEST = 43.0


def additive_attention(
    query: Tensor, key: Tensor, direction: Tensor, value: Tensor, valid: Tensor | None, causal: bool
) -> Tensor:
    """softmax_j(w·tanh(a_i + b_j)) v_j, (batch, heads, queries, head_dim), in the dtype of `value`.

    query a: (batch, heads, queries, hidden) and key b: (batch, heads, keys, hidden), projected; direction w: (heads,
    hidden); these three float32, hidden at most 256. value: (batch, heads, keys, head_dim). valid: (batch, keys) or
    None; causal aligns at the last key. Queries without a key give zeros. Beyond 43 in size, an entry of a or b counts
    as 43. Differentiable once in a, b, w and v, the same bits at every run; memory O(N (hidden + head_dim)).
    Ask `launch.reason` first.
    """
    query, key, value, valid = prepared(query, key, value, valid, one_width=False, whole=True)
    return cast(Tensor, _Additive.apply(query, key, direction.contiguous(), value, valid, causal))


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, direction: Tensor, value: Tensor, valid: Tensor | None, causal: bool
    ) -> Tensor:
        batch, heads, queries, hidden = query.shape
        keys, head_dim = value.shape[2:]
        e, f = _exponentials(query), _exponentials(key)
        kept = None if valid is None else valid.to(torch.uint8)
        output = value.new_empty(batch, heads, queries, head_dim)
        mass = query.new_empty(batch, heads, queries)
        dim, fits = padded(head_dim), padded(hidden)
        ctx.sizes, ctx.constants = (
            (heads, queries, keys, hidden),
            {
                "CAUSAL": causal,
                "HAS_VALID": valid is not None,
                "HEAD_DIM": head_dim,
                "DIM": dim,
                "HIDDEN": fits,
                # products without tensor cores would spill; three of TF32 keep the digits of float32
                "PRECISION": "tf32x3" if value.dtype == torch.float32 else "tf32",
                "warps": 8 if max(fits, dim) > 128 else 4,
                "stages": 1,
            },
        )
        rows = 64 if dim <= 128 else 32
        launch(
            _forward, (triton.cdiv(queries, rows) * batch * heads,),
            e, f, direction, value, kept, output, mass, *ctx.sizes, ROWS=rows, COLUMNS=64, **ctx.constants,
        )  # fmt: skip
        ctx.save_for_backward(e, f, direction, value, kept, output, mass)
        return output

    @staticmethod
    @first_derivative_only(OF_ADDITIVE)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        e, f, direction, value, kept, output, mass = ctx.saved_tensors
        heads, queries, keys, hidden = ctx.sizes
        gradient = gradient.contiguous()
        # sum_j p_ij dp_ij of each row, all that couples the gradients of its scores
        delta = torch.einsum("bhnd,bhnd->bhn", gradient.float(), output.float()).contiguous()
        # both sums over a tile, (rows | columns, HIDDEN) and (columns, DIM), have to fit the registers beside it
        tiles = {"ROWS": 32, "COLUMNS": 32 if max(ctx.constants["HIDDEN"], ctx.constants["DIM"]) <= 128 else 16}
        batch, row_tiles = value.shape[0], triton.cdiv(queries, 32)
        of_query, of_key = e.new_empty(batch, heads, queries, hidden), e.new_empty(batch, heads, keys, hidden)
        # one row for each program, added up below: an atomic sum would differ from run to run
        of_direction = e.new_empty(batch, heads, row_tiles, hidden)
        of_value = torch.empty_like(value)
        given = (e, f, direction, value, kept, gradient, mass, delta)
        launch(
            _backward_queries, (row_tiles * batch * heads,), *given,
            of_query, of_direction, *ctx.sizes, **tiles, **ctx.constants,
        )  # fmt: skip
        launch(
            _backward_keys, (triton.cdiv(keys, tiles["COLUMNS"]) * batch * heads,), *given,
            of_key, of_value, *ctx.sizes, **tiles, **ctx.constants,
        )  # fmt: skip
        return of_query, of_key, of_direction.sum((0, 2)), of_value, None, None


def _exponentials(projected: Tensor) -> Tensor:
    """exp(2 x), (batch, heads, hidden, length): a hidden unit at a time is read along the sequence."""
    return (2.0 * projected.clamp(-_LARGEST, _LARGEST)).exp().transpose(-2, -1).contiguous()


@triton.jit
def _own_head(
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, row, heads, queries, keys, hidden,
    HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """All pointers moved to the (batch, head) `row`; E and F are (rows, hidden, length), w is (heads, hidden)."""
    if HAS_VALID:
        valid_ptr += row // heads * keys
    else:
        # Triton 3.6 returns no None in a tuple; without a mask nobody reads it
        valid_ptr = v_ptr
    e_ptr, f_ptr = e_ptr + row * hidden * queries, f_ptr + row * hidden * keys
    return e_ptr, f_ptr, w_ptr + row % heads * hidden, v_ptr + row * keys * HEAD_DIM, valid_ptr


@triton.jit
def _share(e_ptr, f_ptr, unit, queries, keys, i, j):
    """r = 1 / (1 + E F) of one hidden unit, for pairs of i and j, (rows, 1) and (1, columns) or turned."""
    # 0 past the end: r is then 1, whatever the other factor, and never NaN
    e = tl.load(e_ptr + unit * queries + i, mask=i < queries, other=0.0)
    f = tl.load(f_ptr + unit * keys + j, mask=j < keys, other=0.0)
    return 1.0 / (1.0 + e * f)


@triton.jit
def _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, i, j):
    """Scores in powers of two, less what all keys share; `scores` are zeros in the shape of the pairs."""
    for unit in range(hidden):
        # w tanh = w - 2 w r; the sum of w is the same for all keys, so softmax does not see it
        scores += tl.load(w_ptr + unit) * (-2.0 * LOG2E) * _share(e_ptr, f_ptr, unit, queries, keys, i, j)
    return scores


@triton.jit(do_not_specialize=SIZES)
def _forward(
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, output, masses, heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, row = own_tile(tl.cdiv(queries, ROWS))
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr = _own_head(
        e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, row, heads, queries, keys, hidden, HAS_VALID, HEAD_DIM
    )
    at = tile * ROWS + tl.arange(0, ROWS)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, seen_columns(tile, queries, keys, CAUSAL, ROWS, COLUMNS) * COLUMNS, COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores = _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, at[:, None], key_at[None, :])
        seen = visible(valid_ptr, tile * ROWS, start, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
        scores = tl.where(seen, scores, -float("inf"))
        weights, shrink, top, total = softmax_step(scores, top, total)
        v = load_rows(v_ptr, HEAD_DIM, start, keys, True, HEAD_DIM, DIM, COLUMNS)
        sums = tl.dot(narrow(weights, v.dtype), v, sums * shrink[:, None], input_precision=PRECISION)
    inverse, mass = softmax_end(top, total)
    output += row * queries * HEAD_DIM
    store_rows(output, HEAD_DIM, tile * ROWS, queries, sums * inverse[:, None], HEAD_DIM, DIM, ROWS)
    tl.store(masses + row * queries + at, mass, mask=at < queries)


@triton.jit(do_not_specialize=SIZES)
def _backward_queries(
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, gradients, masses, deltas, of_query, of_direction,
    heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(queries, ROWS)
    tile, row = own_tile(row_tiles)
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr = _own_head(
        e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, row, heads, queries, keys, hidden, HAS_VALID, HEAD_DIM
    )
    gradients += row * queries * HEAD_DIM
    at, units = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, HIDDEN)
    gradient = load_rows(gradients, HEAD_DIM, tile * ROWS, queries, True, HEAD_DIM, DIM, ROWS)
    mass = tl.load(masses + row * queries + at, mask=at < queries, other=float("inf"))
    delta = tl.load(deltas + row * queries + at, mask=at < queries, other=0.0)
    shares, slopes = tl.zeros([ROWS, HIDDEN], tl.float32), tl.zeros([ROWS, HIDDEN], tl.float32)
    for start in range(0, seen_columns(tile, queries, keys, CAUSAL, ROWS, COLUMNS) * COLUMNS, COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores = _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, at[:, None], key_at[None, :])
        seen = visible(valid_ptr, tile * ROWS, start, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
        weights = tl.exp2(tl.where(seen, scores, -float("inf")) - mass[:, None])
        v = load_rows(v_ptr, HEAD_DIM, start, keys, True, HEAD_DIM, DIM, COLUMNS)
        of_weights = tl.dot(gradient, tl.trans(v), input_precision=PRECISION)
        # softmax: ds = p (dp - sum p dp)
        of_scores = weights * (of_weights - delta[:, None])
        for unit in range(hidden):
            share = _share(e_ptr, f_ptr, unit, queries, keys, at[:, None], key_at[None, :])
            part = of_scores * share
            # the column of this unit in registers; a store for each unit would go through memory
            here = (units == unit)[None, :]
            shares += tl.where(here, tl.sum(part, 1)[:, None], 0.0)
            slopes += tl.where(here, tl.sum(part - part * share, 1)[:, None], 0.0)
    w = tl.load(w_ptr + units, mask=units < hidden, other=0.0)
    inside = (at < queries)[:, None] & (units < hidden)[None, :]
    of_query += row * queries * hidden
    tl.store(of_query + at[:, None] * hidden + units[None, :], slopes * (4.0 * w)[None, :], mask=inside)
    # what all keys share of tanh has no part in this sum, since the gradients of a row's scores sum to zero
    place = of_direction + (row * row_tiles + tile) * hidden + units
    tl.store(place, -2.0 * tl.sum(shares, 0), mask=units < hidden)


@triton.jit(do_not_specialize=SIZES)
def _backward_keys(
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, gradients, masses, deltas, of_key, of_value,
    heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # by keys: E and F change places, and the scores stand transposed
    tile, row = own_tile(tl.cdiv(keys, COLUMNS))
    e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr = _own_head(
        e_ptr, f_ptr, w_ptr, v_ptr, valid_ptr, row, heads, queries, keys, hidden, HAS_VALID, HEAD_DIM
    )
    gradients += row * queries * HEAD_DIM
    first = tile * COLUMNS
    key_at, units = first + tl.arange(0, COLUMNS), tl.arange(0, HIDDEN)
    real = key_at < keys
    if HAS_VALID:
        # a row of this kernel is a key, so padding is looked at once and not in each step
        real = real & (tl.load(valid_ptr + key_at, mask=real, other=0) != 0)
    v = load_rows(v_ptr, HEAD_DIM, first, keys, True, HEAD_DIM, DIM, COLUMNS)
    of_v, slopes = tl.zeros([COLUMNS, DIM], tl.float32), tl.zeros([COLUMNS, HIDDEN], tl.float32)
    begin = 0
    if CAUSAL:
        # the first query that sees the first key of the tile, from the start of its row tile
        begin = tl.maximum(first - (keys - queries), 0) // ROWS * ROWS
    for start in range(begin, queries, ROWS):
        at = start + tl.arange(0, ROWS)
        gradient = load_rows(gradients, HEAD_DIM, start, queries, True, HEAD_DIM, DIM, ROWS)
        mass = tl.load(masses + row * queries + at, mask=at < queries, other=float("inf"))
        delta = tl.load(deltas + row * queries + at, mask=at < queries, other=0.0)
        scores = tl.zeros([COLUMNS, ROWS], tl.float32)
        scores = _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, at[None, :], key_at[:, None])
        seen = real[:, None]
        if CAUSAL:
            seen = seen & (key_at[:, None] <= (at + keys - queries)[None, :])
        weights = tl.exp2(tl.where(seen, scores, -float("inf")) - mass[None, :])
        of_v = tl.dot(narrow(weights, gradient.dtype), gradient, of_v, input_precision=PRECISION)
        of_weights = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        of_scores = weights * (of_weights - delta[None, :])
        for unit in range(hidden):
            share = _share(e_ptr, f_ptr, unit, queries, keys, at[None, :], key_at[:, None])
            part = of_scores * (share - share * share)
            slopes += tl.where((units == unit)[None, :], tl.sum(part, 1)[:, None], 0.0)
    w = tl.load(w_ptr + units, mask=units < hidden, other=0.0)
    inside = (key_at < keys)[:, None] & (units < hidden)[None, :]
    of_key += row * keys * hidden
    tl.store(of_key + key_at[:, None] * hidden + units[None, :], slopes * (4.0 * w)[None, :], mask=inside)
    store_rows(of_value + row * keys * HEAD_DIM, HEAD_DIM, first, keys, of_v, HEAD_DIM, DIM, COLUMNS)


def _pass(head_dim: int, hidden: int) -> None:
    query, key = (torch.empty(2, 8, 4096, hidden, device="meta", requires_grad=True) for _ in range(2))
    value = torch.empty(2, 8, 4096, head_dim, device="meta", dtype=torch.bfloat16, requires_grad=True)
    direction = torch.empty(8, hidden, device="meta", requires_grad=True)
    valid = torch.empty(2, 4096, device="meta", dtype=torch.bool)
    output = additive_attention(query, key, direction, value, valid, True)
    output.backward(torch.empty_like(output))


COMPILE_CASES = (
    CompileCase(name="head_dim 64, hidden 64", run=lambda: _pass(64, 64)),
    CompileCase(name="head_dim 256, hidden 256", run=lambda: _pass(256, 256)),
)
