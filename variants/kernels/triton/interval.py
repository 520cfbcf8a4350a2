"""Softmax attention in which each query sees an interval of the keys, with scores and values by clipped distance.

Local attention, routing in cluster order and relative positions are all of this form: bounds (rows | 1, queries) int32,
lower <= upper, neither ever falling from one query to the next, so that the queries which see a tile of keys are an
interval too and only tiles with a visible pair are visited, forward and backward.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from .dropout import arguments, kept_along_keys, load_seed
from .interval_backward import backward_keys, backward_queries
from .launch import SIZES, CompileCase, launch, prepared
from .pairs import bounds_of, by_distance, hide, put_rows, rows_of
from .tiles import LOG2E, Tiles, narrow, own_tile, padded, softmax_end, softmax_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Keys lower[i] <= j < upper[i] for query i, both (batch * heads | 1, queries) int32, never falling.

    `offset`: position of the first query among the keys, for distances. `hide_self` takes the key at the query's own
    index out of every interval that has another one.
    """

    lower: Tensor
    upper: Tensor
    offset: int = 0
    hide_self: bool = False


def interval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Intervals,
    valid: Tensor | None = None,
    *,
    scale: float,
    bias: Tensor | None = None,
    back: int = 0,
    collect: bool = False,
    drop: WeightDropout | None = None,
    precision: Literal["tf32x3", "tf32"] = "tf32x3",
) -> tuple[Tensor, Tensor | None]:
    """Attention over intervals, (batch, heads, queries, head_dim), and the weights summed by distance.

    query (batch, heads, queries, head_dim); key and value (batch, heads, keys, head_dim), all of one dtype; valid
    (batch, keys), True = a real key, or None. `bias` (batch, heads, queries, columns) float32 is added to the scaled
    scores: the pair of query i and key j takes column clip(j - i - offset, -back, columns - 1 - back) + back. Where
    `collect`, the second result (batch, heads, queries, columns), float32, sums the weights in the same columns, and
    its gradient is taken; otherwise it is None. `drop`: dropout of the weights, which acts on both results, by the mask
    of `ops/dropout` of the places in these tensors. Queries without a key give zeros. Differentiable once in query,
    key, value and bias, the same bits at every run; memory O(N (head_dim + columns)). `precision` is that of products
    of float32: three of TF32 keep its digits on tensor cores, one keeps those of float16. Ask `launch.reason` first.
    """
    # rows are addressed as (rows, length, head_dim): one address for each (batch, head)
    query, key, value, valid = prepared(query, key, value, valid, whole=True)
    bias = None if bias is None else bias.contiguous()
    found = _IntervalAttention.apply(query, key, value, intervals, valid, scale, bias, back, collect, drop, precision)
    return cast(tuple[Tensor, Tensor | None], found)


def _tiles_for(dtype: torch.dtype, head_dim: int, biased: bool, drops: bool) -> tuple[Tiles, Tiles]:
    """Sizes along the keys and along the queries that fit the registers as compiled for compute capability 9.0.

    By counts of instructions and of stack (NOTES.md); not tuned on a GPU.
    """
    dim = padded(head_dim)
    if dtype == torch.float32:
        tiles = Tiles(rows=64, columns=32, warps=4) if dim <= 64 else Tiles(rows=32, columns=32, warps=4, stages=1)
        return tiles, replace(tiles, rows=32) if drops else tiles
    if dim <= 64 and biased:
        return Tiles(rows=64, columns=32, warps=4, stages=3), Tiles(rows=32, columns=64, warps=4, stages=3)
    if dim <= 128:
        # the mask of dropout takes registers that a narrower tile has left
        columns, stages = (32 if biased and drops else 64), (3 if dim <= 64 else 2)
        tiles = Tiles(rows=64, columns=columns, warps=8 if biased else 4, stages=stages)
    else:
        tiles = Tiles(rows=64, columns=32 if biased else 64, warps=8)
    return tiles, tiles


class _IntervalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        intervals: Intervals,
        valid: Tensor | None,
        scale: float,
        bias: Tensor | None,
        back: int,
        collect: bool,
        drop: WeightDropout | None,
        precision: str,
    ) -> tuple[Tensor, Tensor | None]:
        batch, heads, queries, head_dim = query.shape
        bounds_stride = queries if intervals.lower.shape[0] > 1 else 0
        # distances count from -back to ahead, clipped
        ahead = 0 if bias is None else bias.shape[-1] - 1 - back
        ctx.tiles = tiles, _ = _tiles_for(query.dtype, head_dim, bias is not None, drop is not None)
        ctx.scale, ctx.drop = scale, arguments(drop)
        ctx.sizes = heads, bounds_stride, queries, key.shape[2], intervals.offset, back, ahead, scale * LOG2E.value
        ctx.constants = {
            "HAS_VALID": valid is not None,
            "HIDE_SELF": intervals.hide_self,
            "HAS_BIAS": bias is not None,
            "COLLECT": collect,
            "DROP": drop is not None,
            "HEAD_DIM": head_dim,
            "DIM": padded(head_dim),
            "PRECISION": precision,
        }
        kept = None if valid is None else valid.to(torch.uint8)
        lower, upper = intervals.lower.contiguous(), intervals.upper.contiguous()
        output = torch.empty_like(query)
        mass = query.new_empty(batch, heads, queries, dtype=torch.float32)
        collected = torch.zeros_like(bias) if collect and bias is not None else None
        launch(
            _forward, (triton.cdiv(queries, tiles.rows) * batch * heads,),
            query, key, value, lower, upper, kept, bias, output, mass, collected, *ctx.drop, *ctx.sizes,
            **ctx.constants, **_sizes(tiles),
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, lower, upper, kept, bias, output, mass, collected)
        return output, collected

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, gradient: Tensor, of_collected: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, lower, upper, kept, bias, output, mass, collected = ctx.saved_tensors
        gradient = gradient.contiguous()
        # sum_j p_ij dp_ij of each row, from the output: all that couples the gradients of its scores
        delta = torch.einsum("bhnd,bhnd->bhn", gradient.float(), output.float())
        if of_collected is not None and collected is not None:
            of_collected = of_collected.contiguous()
            # the sums by distance are outputs of the same weights, so their gradient joins delta
            delta = delta + torch.einsum("bhnd,bhnd->bhn", of_collected, collected)
        delta = delta.contiguous()
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        of_bias = None if bias is None else torch.zeros_like(bias)
        heads, bounds_stride, queries, keys = ctx.sizes[:4]
        rows, (tiles, of_keys) = query.shape[0] * heads, ctx.tiles
        launch(
            backward_queries, (triton.cdiv(queries, tiles.rows) * rows,),
            query, key, value, lower, upper, kept, bias, gradient, mass, delta, of_collected, of_query, of_bias,
            *ctx.drop, *ctx.sizes, ctx.scale, **ctx.constants, **_sizes(tiles),
        )  # fmt: skip
        count = triton.cdiv(keys, of_keys.columns)
        # bounds never fall, so the queries that see a tile of keys are found by two searches, on the device
        edges = torch.arange(0, count + 1, device=query.device, dtype=torch.int32) * of_keys.columns
        edges = edges.expand(lower.shape[0], count + 1).contiguous()
        begin = torch.searchsorted(upper, edges[:, :-1].contiguous(), right=True, out_int32=True)
        end = torch.searchsorted(lower, edges[:, 1:].contiguous(), out_int32=True)
        launch(
            backward_keys, (count * rows,),
            query, key, value, lower, upper, begin, end, kept, bias, gradient, mass, delta, of_collected,
            of_key, of_value, *ctx.drop, *ctx.sizes, ctx.scale, count if bounds_stride else 0,
            **ctx.constants, **_sizes(of_keys),
        )  # fmt: skip
        return of_query, of_key, of_value, None, None, None, of_bias, None, None, None, None


def _sizes(tiles: Tiles) -> dict[str, int]:
    """The arguments of a launch that `tiles` decides."""
    return {"ROWS": tiles.rows, "COLUMNS": tiles.columns, "warps": tiles.warps, "stages": tiles.stages}


@triton.jit(do_not_specialize=SIZES)
def _forward(
    q_ptr, k_ptr, v_ptr, lower_ptr, upper_ptr, valid, bias, output, masses, collected,
    seed_ptr, least, rescale, heads, bounds_stride, queries, keys, offset, back, ahead, scale,
    HAS_VALID: tl.constexpr, HIDE_SELF: tl.constexpr, HAS_BIAS: tl.constexpr, COLLECT: tl.constexpr,
    DROP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile, row = own_tile(tl.cdiv(queries, ROWS))
    top_row = tile * ROWS
    at = top_row + tl.arange(0, ROWS)
    lower, upper = bounds_of(lower_ptr, upper_ptr, row, bounds_stride, at, queries)
    q = rows_of(q_ptr, row, at, queries, HEAD_DIM, DIM)
    seed = load_seed(seed_ptr, DROP)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    past, future = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    # keys from `full_from` to `full_to` are seen by every query of the tile: those tiles skip the mask
    full_from, full_to = tl.max(lower, 0), tl.min(upper, 0)
    # the union of the intervals, from the start of a tile of keys
    first, last = tl.min(lower, 0) // COLUMNS * COLUMNS, tl.max(upper, 0)
    for start in range(first, last, COLUMNS):
        key_at = start + tl.arange(0, COLUMNS)
        k = rows_of(k_ptr, row, key_at, keys, HEAD_DIM, DIM)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if HAS_BIAS:
            scores += by_distance(bias, row, at[:, None], key_at[None, :], queries, offset, back, ahead) * LOG2E
        if HAS_VALID or HIDE_SELF or start < full_from or start + COLUMNS > full_to:
            scores = hide(
                scores, valid, row, heads, keys, at[:, None], key_at[None, :], lower[:, None], upper[:, None],
                HAS_VALID, HIDE_SELF,
            )  # fmt: skip
        weights, shrink, top, total = softmax_step(scores, top, total)
        if DROP:
            # after the total, which is that of all weights; what is kept is scaled at the end
            kept = kept_along_keys(seed, least, at, start, row // heads, row % heads, COLUMNS)
            weights = tl.where(kept, weights, 0.0)
        if COLLECT:
            distance = key_at[None, :] - at[:, None] - offset
            # the two ends gather many keys, so they are sums of the row, rescaled like the total
            past = past * shrink + tl.sum(tl.where(distance <= -back, weights, 0.0), 1)
            future = future * shrink + tl.sum(tl.where(distance >= ahead, weights, 0.0), 1)
        v = rows_of(v_ptr, row, key_at, keys, HEAD_DIM, DIM)
        sums = tl.dot(narrow(weights, v.dtype), v, sums * shrink[:, None], input_precision=PRECISION)
    inverse, mass = softmax_end(top, total)
    if DROP:
        inverse *= rescale
    put_rows(output, row, at, queries, sums * inverse[:, None], HEAD_DIM, DIM)
    tl.store(masses + row * queries + at, mass, mask=at < queries)
    if COLLECT:
        place = collected + row * queries * (back + ahead + 1) + at * (back + ahead + 1)
        tl.store(place, past * inverse, mask=at < queries)
        tl.store(place + back + ahead, future * inverse, mask=at < queries)
        # a distance in between belongs to one key: its weight is computed once more, now that the total is known
        # from the tile with the first key that is less than `back` behind the first query
        near = tl.maximum(first, (top_row + offset - back + 1) // COLUMNS * COLUMNS)
        for start in range(near, tl.minimum(last, top_row + ROWS + offset + ahead), COLUMNS):
            key_at = start + tl.arange(0, COLUMNS)
            k = rows_of(k_ptr, row, key_at, keys, HEAD_DIM, DIM)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            scores += by_distance(bias, row, at[:, None], key_at[None, :], queries, offset, back, ahead) * LOG2E
            scores = hide(
                scores, valid, row, heads, keys, at[:, None], key_at[None, :], lower[:, None], upper[:, None],
                HAS_VALID, HIDE_SELF,
            )  # fmt: skip
            distance = key_at[None, :] - at[:, None] - offset
            inside = (at < queries)[:, None] & (distance > -back) & (distance < ahead)
            weights = tl.exp2(scores - mass[:, None])
            if DROP:
                kept = kept_along_keys(seed, least, at, start, row // heads, row % heads, COLUMNS)
                weights = tl.where(kept, weights * rescale, 0.0)
            tl.store(place[:, None] + distance + back, weights, mask=inside)


def _pass(head_dim: int, columns: int, dtype: torch.dtype = torch.bfloat16, rate: float = 0.0) -> None:
    query, key, value = (
        torch.empty(2, 8, 4096, head_dim, device="meta", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    at = torch.empty(1, 4096, device="meta", dtype=torch.int32)
    bias = torch.empty(2, 8, 4096, columns, device="meta", requires_grad=True) if columns else None
    valid = torch.empty(2, 4096, device="meta", dtype=torch.bool) if columns == 31 else None
    output, collected = interval_attention(
        query, key, value, Intervals(lower=at, upper=at, hide_self=False), valid, scale=0.125, bias=bias,
        back=columns // 2, collect=bias is not None, drop=WeightDropout.drawn(rate, query.device),
    )  # fmt: skip
    found = [output] if collected is None else [output, collected]
    torch.autograd.backward(found, [torch.empty_like(one) for one in found])


COMPILE_CASES = (
    CompileCase(name="intervals, 64", run=lambda: _pass(64, 0)),
    CompileCase(name="by distance, 128", run=lambda: _pass(128, 33)),
    CompileCase(name="by distance, 256", run=lambda: _pass(256, 33)),
    CompileCase(name="intervals, 64, dropout", run=lambda: _pass(64, 0, rate=0.1)),
    CompileCase(name="by distance, 64, dropout", run=lambda: _pass(64, 33, rate=0.1)),
    CompileCase(name="by distance, 128, dropout", run=lambda: _pass(128, 33, rate=0.1)),
    CompileCase(name="float32, 64, dropout", run=lambda: _pass(64, 0, torch.float32, rate=0.1)),
)
