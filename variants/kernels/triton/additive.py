"""Additive (Bahdanau) attention in one pass over the keys: nothing of size queries by keys is kept, nor times hidden.

With E = exp(2 W q) and F = exp(2 U k), tanh(W q + U k) = 1 - 2 / (1 + E F): one reciprocal and two multiplications for
each pair and hidden unit, where tanh itself would be two special functions. The constant is the same for all keys, so
the softmax does not see it. The slope is 4 r (1 - r) with the same r = 1 / (1 + E F).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launch as triton_launch
from .launch import CompileCase, launch
from .tiles import load_rows, narrow, own_tile, padded, seen_columns, store_rows, visible

reason = triton_launch.reason

LOG2E = tl.constexpr(1.4426950408889634)
# exp(2 * 43) is still a float32; a product that is none becomes infinity or zero, where tanh is one or minus one anyway
_LARGEST = 43.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdditivePlan:
    heads: int
    queries: int
    keys: int
    hidden: int
    head_dim: int
    causal: bool
    kept: bool
    wide: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.heads, self.queries, self.keys, self.hidden

    def constants(self, rows: int, columns: int) -> dict[str, Any]:
        fits = padded(self.hidden)
        return {
            "CAUSAL": self.causal,
            "HAS_KEEP": self.kept,
            "HEAD_DIM": self.head_dim,
            "DIM": padded(self.head_dim),
            "HIDDEN": fits,
            "ROWS": rows,
            "COLUMNS": columns,
            # products without tensor cores would spill; three of TF32 keep the digits of float32
            "PRECISION": "tf32x3" if self.wide else "tf32",
            "warps": 8 if max(fits, padded(self.head_dim)) > 128 else 4,
            "stages": 1,
        }

    @property
    def forward(self) -> dict[str, Any]:
        return self.constants(64 if padded(self.head_dim) <= 128 else 32, 64)

    @property
    def backward(self) -> dict[str, Any]:
        return self.constants(32, 32 if max(padded(self.hidden), padded(self.head_dim)) <= 128 else 16)


def additive_attention(
    query: Tensor, key: Tensor, direction: Tensor, value: Tensor, keep: Tensor | None, causal: bool
) -> Tensor:
    """softmax_j(w·tanh(a_i + b_j)) v_j, (batch, heads, queries, head_dim), in the dtype of `value`.

    query a: (batch, heads, queries, hidden) and key b: (batch, heads, keys, hidden), projected; direction w: (heads,
    hidden); these three float32, hidden at most 256. value: (batch, heads, keys, head_dim). keep: (batch, keys) or
    None; causal aligns at the last key. Queries without a key give zeros. Beyond 43 in size, an entry of a or b counts
    as 43. Differentiable once in a, b, w and v, the same bits at every run; memory O(N (hidden + head_dim)).
    Ask `reason` first.
    """
    output: Tensor = _Additive.apply(query, key, direction, value, keep, causal)
    return output


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, direction: Tensor, value: Tensor, keep: Tensor | None, causal: bool
    ) -> Tensor:
        batch, heads, queries, hidden = query.shape
        plan = _AdditivePlan(
            heads=heads,
            queries=queries,
            keys=key.shape[2],
            hidden=hidden,
            head_dim=value.shape[3],
            causal=causal,
            kept=keep is not None,
            wide=value.dtype == torch.float32,
        )
        e, f, value, direction = _exponentials(query), _exponentials(key), value.contiguous(), direction.contiguous()
        kept = None if keep is None else keep.to(torch.uint8).contiguous()
        output = value.new_empty(batch, heads, queries, plan.head_dim)
        mass = query.new_empty(batch, heads, queries)
        constants = plan.forward
        launch(
            _forward, (triton.cdiv(queries, constants["ROWS"]) * batch * heads,),
            e, f, direction, value, kept, output, mass, *plan.sizes, **constants,
        )  # fmt: skip
        ctx.plan = plan
        ctx.save_for_backward(e, f, direction, value, kept, output, mass)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        plan: _AdditivePlan = ctx.plan
        e, f, direction, value, kept, output, mass = ctx.saved_tensors
        gradient = gradient.contiguous()
        delta = torch.einsum("bhnd,bhnd->bhn", gradient.float(), output.float()).contiguous()
        batch, constants = value.shape[0], plan.backward
        row_tiles = triton.cdiv(plan.queries, constants["ROWS"])
        of_query = e.new_empty(batch, plan.heads, plan.queries, plan.hidden)
        of_key = e.new_empty(batch, plan.heads, plan.keys, plan.hidden)
        of_direction = e.new_empty(batch, plan.heads, row_tiles, plan.hidden)
        of_value = torch.empty_like(value)
        given = (e, f, direction, value, kept, gradient, mass, delta)
        launch(
            _backward_queries, (row_tiles * batch * plan.heads,), *given,
            of_query, of_direction, *plan.sizes, **constants,
        )  # fmt: skip
        launch(
            _backward_keys, (triton.cdiv(plan.keys, constants["COLUMNS"]) * batch * plan.heads,), *given,
            of_key, of_value, *plan.sizes, **constants,
        )  # fmt: skip
        return of_query, of_key, of_direction.sum((0, 2)), of_value, None, None


def _exponentials(projected: Tensor) -> Tensor:
    """exp(2 x), (batch, heads, hidden, length): a hidden unit at a time is read along the sequence."""
    return (2.0 * projected.clamp(-_LARGEST, _LARGEST)).exp().transpose(-2, -1).contiguous()


@triton.jit
def _share(e_ptr, f_ptr, unit, queries, keys, i, j):
    """r = 1 / (1 + E F) of one hidden unit, for pairs of i and j, (rows, 1) and (1, columns) or turned."""
    e = tl.load(e_ptr + unit * queries + i, mask=i < queries, other=0.0)
    f = tl.load(f_ptr + unit * keys + j, mask=j < keys, other=0.0)
    return 1.0 / (1.0 + e * f)


@triton.jit
def _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, i, j):
    """Scores in powers of two, less what all keys share; `scores` are zeros in the shape of the pairs."""
    for unit in range(hidden):
        scores += tl.load(w_ptr + unit) * (-2.0 * LOG2E) * _share(e_ptr, f_ptr, unit, queries, keys, i, j)
    return scores


@triton.jit
def _forward(
    e_ptr, f_ptr, w_ptr, v_ptr, keep_ptr, output, masses, heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, row = own_tile(tl.cdiv(queries, ROWS))
    e_ptr, f_ptr = e_ptr + row * hidden * queries, f_ptr + row * hidden * keys
    w_ptr, v_ptr = w_ptr + row % heads * hidden, v_ptr + row * keys * HEAD_DIM
    if HAS_KEEP:
        keep_ptr += row // heads * keys
    at = tile * ROWS + tl.arange(0, ROWS)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, seen_columns(tile, queries, keys, CAUSAL, ROWS, COLUMNS) * COLUMNS, COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores = _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, at[:, None], key_at[None, :])
        seen = visible(keep_ptr, tile * ROWS, start, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
        scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # a row that has seen no key yet has no top; its weights are zero whatever stands here
        level = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights, shrink = tl.exp2(scores - level[:, None]), tl.exp2(top - level)
        total = total * shrink + tl.sum(weights, 1)
        v = load_rows(v_ptr, HEAD_DIM, start, keys, True, HEAD_DIM, DIM, COLUMNS)
        sums = tl.dot(narrow(weights, v.dtype), v, sums * shrink[:, None], input_precision=PRECISION)
        top = new_top
    seen_any = total > 0.0
    inverse = tl.where(seen_any, 1.0 / tl.where(seen_any, total, 1.0), 0.0)
    mass = tl.where(seen_any, top + tl.log2(tl.where(seen_any, total, 1.0)), float("inf"))
    output += row * queries * HEAD_DIM
    store_rows(output, HEAD_DIM, tile * ROWS, queries, sums * inverse[:, None], HEAD_DIM, DIM, ROWS)
    tl.store(masses + row * queries + at, mass, mask=at < queries)


@triton.jit
def _backward_queries(
    e_ptr, f_ptr, w_ptr, v_ptr, keep_ptr, gradients, masses, deltas, of_query, of_direction,
    heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(queries, ROWS)
    tile, row = own_tile(row_tiles)
    e_ptr, f_ptr = e_ptr + row * hidden * queries, f_ptr + row * hidden * keys
    w_ptr, v_ptr = w_ptr + row % heads * hidden, v_ptr + row * keys * HEAD_DIM
    gradients += row * queries * HEAD_DIM
    if HAS_KEEP:
        keep_ptr += row // heads * keys
    at, units = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, HIDDEN)
    gradient = load_rows(gradients, HEAD_DIM, tile * ROWS, queries, True, HEAD_DIM, DIM, ROWS)
    mass = tl.load(masses + row * queries + at, mask=at < queries, other=float("inf"))
    delta = tl.load(deltas + row * queries + at, mask=at < queries, other=0.0)
    shares, slopes = tl.zeros([ROWS, HIDDEN], tl.float32), tl.zeros([ROWS, HIDDEN], tl.float32)
    for start in range(0, seen_columns(tile, queries, keys, CAUSAL, ROWS, COLUMNS) * COLUMNS, COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores = _scores(e_ptr, f_ptr, w_ptr, scores, hidden, queries, keys, at[:, None], key_at[None, :])
        seen = visible(keep_ptr, tile * ROWS, start, queries, keys, CAUSAL, HAS_KEEP, ROWS, COLUMNS)
        weights = tl.exp2(tl.where(seen, scores, -float("inf")) - mass[:, None])
        v = load_rows(v_ptr, HEAD_DIM, start, keys, True, HEAD_DIM, DIM, COLUMNS)
        of_weights = tl.dot(gradient, tl.trans(v), input_precision=PRECISION)
        of_scores = weights * (of_weights - delta[:, None])
        for unit in range(hidden):
            share = _share(e_ptr, f_ptr, unit, queries, keys, at[:, None], key_at[None, :])
            part = of_scores * share
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


@triton.jit
def _backward_keys(
    e_ptr, f_ptr, w_ptr, v_ptr, keep_ptr, gradients, masses, deltas, of_key, of_value,
    heads, queries, keys, hidden,
    CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, row = own_tile(tl.cdiv(keys, COLUMNS))
    e_ptr, f_ptr = e_ptr + row * hidden * queries, f_ptr + row * hidden * keys
    w_ptr, v_ptr = w_ptr + row % heads * hidden, v_ptr + row * keys * HEAD_DIM
    gradients += row * queries * HEAD_DIM
    first = tile * COLUMNS
    key_at, units = first + tl.arange(0, COLUMNS), tl.arange(0, HIDDEN)
    real = key_at < keys
    if HAS_KEEP:
        real = real & (tl.load(keep_ptr + row // heads * keys + key_at, mask=real, other=0) != 0)
    v = load_rows(v_ptr, HEAD_DIM, first, keys, True, HEAD_DIM, DIM, COLUMNS)
    of_v, slopes = tl.zeros([COLUMNS, DIM], tl.float32), tl.zeros([COLUMNS, HIDDEN], tl.float32)
    begin = 0
    if CAUSAL:
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
    keep = torch.empty(2, 4096, device="meta", dtype=torch.bool)
    output = additive_attention(query, key, direction, value, keep, True)
    output.backward(torch.empty_like(output))


COMPILE_CASES = (
    CompileCase(name="head_dim 64, hidden 64", run=lambda: _pass(64, 64)),
    CompileCase(name="head_dim 256, hidden 256", run=lambda: _pass(256, 256)),
)
