"""Attention with any map of `ops/written.py`, by tiles of scores: sums of values by its weights.

The kernel calls functions written for the map, which load what they need of a query by themselves. Every tile that the
mask leaves is visited. `maps_backward` has the gradients.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from ...ops.written import Written, write
from . import launch as triton_launch
from .dropout import arguments, kept_along_keys, load_seed
from .launch import SIZES, CompileCase, launch, prepared
from .maps_backward import backward, tiles_of_keys
from .tiles import (
    Tiles,
    columns_to_visit,
    constants,
    converted,
    load_rows,
    own_rows,
    padded,
    store_rows,
    strides,
    visible,
)
from .written import functions

reason = triton_launch.reason


def map_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None,
    causal: bool,
    written: Written,
    drop: WeightDropout | None = None,
    *,
    learned: Mapping[str, Tensor] | None = None,
    sink: Tensor | float | None = None,
    epsilon: float = 0.0,
    homogeneous: bool = False,
    tiles: Tiles | None = None,
) -> Tensor:
    """Sums of values by the weights of a map, (batch, heads, queries, head_dim), float32 whatever the inputs.

    query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim), of one dtype; kv_heads
    divide heads, and nothing is repeated for them. valid (batch, keys), True = a real key, or None. `learned`, `sink`
    and `epsilon` as in `cpu.tiles.tiled_attention`. `homogeneous`: map(c x) = c map(x) for c > 0, so that the scale of
    the scores waits until the end. `drop`: dropout of the weights, by the mask of `ops/dropout`. A query without a key
    that it may see gets zeros and gives no gradient. Products are those of the dtype, sums are float32, as is the
    gradient that is taken; with float16 a gradient or a weight beyond 65504 counts as 65504, and weights over a sum
    without `top` are multiplied in float32. Differentiable once, the same bits at every run. Ask `reason` first; raises
    Unsupported for a map that Triton cannot spell.
    """
    if written.sums and not written.tops and query.dtype == torch.float16:
        # weights are converted before they are divided, and may be beyond what it holds
        query, key, value = query.float(), key.float(), value.float()
    query, key, value, valid = prepared(query, key, value, valid, grouped=True)
    drops, grouped = drop is not None, key.shape[1] < query.shape[1]
    if sink is not None and not isinstance(sink, Tensor):
        sink = torch.full((query.shape[1],), float(sink), device=query.device)
    of_keys = tiles or tiles_of_keys(query.dtype, query.shape[-1], grouped=grouped, drops=drops)
    tiles = tiles or tiles_for(query.dtype, query.shape[-1], drops=drops)
    further = valid, causal, written, drop, epsilon, homogeneous, (tiles, of_keys)
    of_heads = ((learned or {})[name] for name in written.learned)
    return cast(Tensor, _MapSums.apply(query, key, value, sink, *further, *of_heads))


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
    sums, total, top, q, k_ptr, v_ptr, valid_ptr, numbers, at, inside, plane, k_row, v_row, first_row, queries, keys,
    seed, least, batch, head, scale, first_tile, last_tile,
    WEIGH: tl.constexpr, SUMS: tl.constexpr, TOPS: tl.constexpr, SCALED: tl.constexpr, RECTIFIED: tl.constexpr,
    DROP: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for tile in range(first_tile, last_tile):
        column = tile * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if SCALED:
            scores *= scale
        level = top
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
        if TOPS:
            shown = scores
            if MASKED:
                shown = tl.where(seen, scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(shown, 1))
            # a row that has seen no key yet has no top; -inf less -inf would be NaN
            level = tl.where(new_top == -float("inf"), 0.0, new_top)
            shrink = tl.exp(top - level)
            sums, total, top = sums * shrink[:, None], total * shrink, new_top
        if MASKED:
            # a hidden score may be anything, and its weight be no number
            scores = tl.where(seen, scores, level[:, None] if TOPS else 0.0)
        weight, summed = WEIGH(scores, level[:, None], numbers, at, inside, plane)
        if MASKED:
            weight, summed = tl.where(seen, weight, 0.0), tl.where(seen, summed, 0.0)
        if SUMS:
            total += tl.sum(summed, 1)
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            weight = tl.where(kept_along_keys(seed, least, rows, column, batch, head, COLUMNS), weight, 0.0)
        sums = tl.dot(converted(weight, v.dtype, RECTIFIED), v, sums, input_precision=PRECISION)
    return sums, total, top


@triton.jit(do_not_specialize=SIZES)
def _forward(
    q_ptr, k_ptr, v_ptr, valid_ptr, out_ptr, sink_ptr, numbers, top_ptr, inverse_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row,
    queries, keys, heads, plane, scale, rescale, epsilon, least,
    WEIGH: tl.constexpr, SUMS: tl.constexpr, TOPS: tl.constexpr, HAS_SINK: tl.constexpr, SCALED: tl.constexpr,
    RECTIFIED: tl.constexpr, DROP: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
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
    seed = load_seed(seed_ptr, DROP)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    if HAS_SINK:
        # one key more without a value: only the sum hears of its score
        top = tl.zeros([ROWS], tl.float32) + tl.load(sink_ptr + head)
        level = tl.where(top == -float("inf"), 0.0, top)
        _, summed = WEIGH(top[:, None], level[:, None], numbers, at[:, None], inside[:, None], plane)
        total = tl.sum(summed, 1)
    sums, total, top = _forward_tiles(
        sums, total, top, q, k_ptr, v_ptr, valid_ptr, numbers, at[:, None], inside[:, None], plane, k_row, v_row,
        first_row, queries, keys, seed, least, batch, head, scale, 0, full,
        WEIGH, SUMS, TOPS, SCALED, RECTIFIED,
        DROP, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    sums, total, top = _forward_tiles(
        sums, total, top, q, k_ptr, v_ptr, valid_ptr, numbers, at[:, None], inside[:, None], plane, k_row, v_row,
        first_row, queries, keys, seed, least, batch, head, scale, full, seen,
        WEIGH, SUMS, TOPS, SCALED, RECTIFIED,
        DROP, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    if SUMS:
        total += epsilon
        # no key, and no sum: weights are zero whatever divides them
        inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
        sums *= inverse[:, None]
        tl.store(inverse_ptr + at, inverse, mask=inside)
    if TOPS:
        tl.store(top_ptr + at, tl.where(top == -float("inf"), 0.0, top), mask=inside)
    out_ptr += batch * out_batch + head * out_head
    store_rows(
        out_ptr, out_row, first_row, queries, sums * (rescale if SCALED else scale * rescale), HEAD_DIM, DIM, ROWS
    )


def _count(valid: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device) -> Tensor:
    """The number of keys that each query may see, at least one: (batch or 1, 1, queries), float32."""
    real = torch.ones(1, keys, device=device) if valid is None else valid.float()
    if not causal:
        return real.sum(-1).clamp(min=1.0)[:, None, None].expand(-1, 1, queries)
    # of the keys up to each query's own
    ends = torch.arange(queries, device=device) + keys - queries
    found = torch.nn.functional.pad(real.cumsum(-1), (1, 0))[:, (ends + 1).clamp(min=0)]
    return found.clamp(min=1.0)[:, None]


class _MapSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        valid: Tensor | None,
        causal: bool,
        written: Written,
        drop: WeightDropout | None,
        epsilon: float,
        homogeneous: bool,
        tiles: tuple[Tiles, Tiles],
        *learned: Tensor,
    ) -> Tensor:
        batch, heads, queries, head_dim = query.shape
        # what no map asks for is neither counted nor filled: each would be a launch of its own
        count = torch.empty((), device=query.device)
        if written.counts:
            count = _count(valid, causal, queries, key.shape[2], query.device)
        numbers = written.numbers(written.forward, query.shape[:3], count, learned)
        # float32 out: a sum over keys grows with their number, and what follows may need its digits
        output = torch.empty_like(query, dtype=torch.float32)
        tops, inverses = (output.new_empty(query.shape[:3]) for _ in range(2))
        seed, least, rescale = arguments(drop)
        sinks = None if sink is None else sink.float().contiguous()
        if output.numel():
            own = functions(written)
            launch(
                _forward, (triton.cdiv(queries, tiles[0].rows) * batch * heads,), query, key, value, valid, output,
                sinks, numbers, tops, inverses, seed, *strides(query, key, value, output), queries, key.shape[2], heads,
                tops.numel(), head_dim**-0.5, rescale, epsilon, least, warps=tiles[0].warps, stages=tiles[0].stages,
                WEIGH=own.weigh, SUMS=written.sums, TOPS=written.tops, SCALED=not homogeneous,
                RECTIFIED=own.is_rectified, HAS_SINK=sink is not None, DROP=drop is not None,
                **constants(query, key, valid, causal, tiles[0]),
            )  # fmt: skip
        ctx.save_for_backward(query, key, value, sink, valid, output, tops, inverses, count, *learned)
        ctx.causal, ctx.written, ctx.drop, ctx.homogeneous, ctx.tiles = causal, written, drop, homogeneous, tiles
        return output

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sink, valid, output, tops, inverses, count, *learned = ctx.saved_tensors
        numbers = ctx.written.numbers(ctx.written.backward, query.shape[:3], count, learned, tops)
        # what comes to the sum that divides the weights of a query
        of_sums = -(grad_output.float() * output).sum(-1) * inverses if ctx.written.sums else inverses
        sinks = None if sink is None else sink.float().contiguous()
        of_inputs, to_learned, to_sinks = backward(
            *(grad_output, query, key, value, sinks, valid, ctx.causal, ctx.written, ctx.drop, ctx.homogeneous),
            *(numbers, inverses, of_sums, *ctx.tiles),
        )
        # float64: a sum over all queries of terms of either sign
        of_learned = (part.double().sum((0, 2)).to(x.dtype) for part, x in zip(to_learned, learned, strict=True))
        of_sink = None if to_sinks is None else to_sinks.sum((0, 2)).to(sink.dtype)
        return *of_inputs, of_sink, *(None,) * 7, *of_learned


def _pass(
    dtype: torch.dtype,
    head_dim: int,
    causal: bool,
    padding: bool,
    kv_heads: int = 4,
    rate: float = 0.0,
    map: Callable[[], dict[str, Any]] | None = None,
) -> None:
    query, key, value = (
        torch.empty(2, heads, 4096, head_dim, dtype=dtype, device="meta", requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    valid = torch.empty(2, 4096, dtype=torch.bool, device="meta") if padding else None
    options = map() if map else {"written": write(torch.relu), "homogeneous": True}
    sums = map_attention(query, key, value, valid, causal, drop=WeightDropout.drawn(rate, query.device), **options)
    sums.backward(torch.empty_like(sums))


def _with_sink() -> dict[str, Any]:
    """Exponentials over their sum and a sink."""
    sink = torch.empty(4, device="meta", requires_grad=True)
    return {"written": write(lambda scores, top: (scores - top).exp(), ("top",), (), True), "sink": sink}


def _learning() -> dict[str, Any]:
    """A number that each head learns, and the count of keys."""
    width = torch.empty(4, device="meta", requires_grad=True)
    written = write(lambda scores, count, width: (scores / width).tanh() / count, ("count", "width"), ("width",))
    return {"written": written, "learned": {"width": width}}


COMPILE_CASES = (
    CompileCase(name="bf16 64 causal", run=lambda: _pass(torch.bfloat16, 64, True, False)),
    CompileCase(name="bf16 64 grouped", run=lambda: _pass(torch.bfloat16, 64, True, False, kv_heads=1)),
    CompileCase(name="bf16 128 causal padding", run=lambda: _pass(torch.bfloat16, 128, True, True)),
    CompileCase(name="bf16 64 causal dropout", run=lambda: _pass(torch.bfloat16, 64, True, False, rate=0.1)),
    CompileCase(name="bf16 128 causal dropout", run=lambda: _pass(torch.bfloat16, 128, True, False, rate=0.1)),
    CompileCase(name="fp16 64", run=lambda: _pass(torch.float16, 64, False, False)),
    CompileCase(name="fp32 64 causal", run=lambda: _pass(torch.float32, 64, True, False)),
    CompileCase(name="bf16 256", run=lambda: _pass(torch.bfloat16, 256, False, False)),
    CompileCase(name="bf16 64 causal sink", run=lambda: _pass(torch.bfloat16, 64, True, False, map=_with_sink)),
    CompileCase(name="bf16 128 padding learned", run=lambda: _pass(torch.bfloat16, 128, False, True, map=_learning)),
)
