"""Gradients of sparsemax and entmax attention, on the listed tiles: by rows for the queries, by columns for the keys.

ds = g (dp - delta), g = p^(2 - alpha), delta = the mean of dp under g, which is the product of the gradient of the
output with the mean of the values that the forward pass left. The pass over rows writes delta, the pass over columns
reads it. The gradient in alpha is summed over a row without any difference of large numbers, as in `ops/thresholds`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.dropout import WeightDropout
from .dropout import arguments, kept_along_keys, kept_along_queries, load_seed
from .launch import SIZES, launch
from .support import SupportMap, excess_of, load_levels, weigh
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
    sparse_map: SupportMap,
    valid: Tensor | None,
    levels: Tensor,
    indices: Tensor,
    counts: Tensor,
    means: Tensor,
    used: Tensor,
    causal: bool,
    drop: WeightDropout | None,
    tiles: Tiles,
    *,
    of_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and of alpha, (heads,), where asked for."""
    batch, heads, queries, head_dim = query.shape
    keys = key.shape[2]
    grad_output = grad_output.to(query.dtype)
    # one set of strides serves both, and `expand` leaves strides of zero
    grad_output = torch.empty_like(means).copy_(grad_output) if grad_output.stride() != means.stride() else grad_output
    to_query, to_key, to_value = (torch.empty_like(x) for x in (query, key, value))
    # written by the pass over rows, read by the pass over columns: the launches are in order on one stream
    delta = levels.new_empty((batch * heads, queries))
    to_alpha = torch.empty_like(delta) if of_alpha else None
    seed, *rates = arguments(drop)
    sizes = (queries, keys, heads, head_dim**-0.5, *rates)
    # the same tiles and precision as the forward: a weight computed again must be the weight that was used
    fixed = {"DROP": drop is not None, "MODE": sparse_map.mode, **constants(query, key, valid, causal, tiles)}
    # with four warps the mask of dropout and 128 numbers of float32 take 1.2 KiB of stack, with eight half of it
    wide = drop is not None and query.dtype == torch.float32 and 64 < head_dim <= 128
    launch(
        _backward_queries, (triton.cdiv(queries, tiles.rows) * batch * heads,),
        query, key, value, valid, sparse_map.excess, levels, indices, counts, grad_output, means, to_query, delta,
        to_alpha, seed,
        *strides(query, key, value, grad_output, to_query), *sizes,
        warps=8 if wide else tiles.warps, stages=tiles.stages, OF_ALPHA=of_alpha, **fixed,
    )  # fmt: skip
    of_keys = tiles_of_keys(tiles, query.dtype, head_dim)
    columns = list_tiles(used, queries, keys, tiles, causal)
    launch(
        _backward_keys, (triton.cdiv(keys, tiles.columns) * batch * key.shape[1],),
        query, key, value, valid, sparse_map.excess, levels, columns.indices, columns.counts, grad_output, delta,
        to_key, to_value, seed,
        *strides(query, key, value, grad_output, to_key, to_value), *sizes,
        warps=of_keys.warps, stages=of_keys.stages, PIECES=tiles.rows // of_keys.rows, **fixed | {"ROWS": of_keys.rows},
    )  # fmt: skip
    alpha_gradient = None if to_alpha is None else to_alpha.view(batch, heads, queries).sum((0, 2))
    return to_query, to_key, to_value, alpha_gradient


def tiles_of_keys(tiles: Tiles, dtype: torch.dtype, head_dim: int) -> Tiles:
    """The tiles of the pass over columns: a part of the rows of `tiles`, by which the lists are; see NOTES.md."""
    if dtype == torch.float32 or tiles.columns != 64:
        return tiles
    # products have the keys in rows here, and four warps take 64 of them: eight compute each score twice
    return replace(tiles, rows=min(tiles.rows, 64 if head_dim <= 64 else 32), warps=4)


@triton.jit
def _slopes(above, weights, factor, excess):
    """p ln p, p phi and p psi of `thresholds.alpha_gradient`, each tile; all zero off the support."""
    # y = -(alpha - 1) ln p >= 0
    y = tl.where(above > 0.0, -tl.log(tl.maximum(above, 1e-30)), 0.0)
    near = tl.minimum(y, 0.5)
    # (exp(y) - 1 - y) / y^2 up to 1/2, where its definition loses digits
    series = 1.0 / 362880.0
    series = series * near + 1.0 / 40320.0
    series = series * near + 1.0 / 5040.0
    series = series * near + 1.0 / 720.0
    series = series * near + 1.0 / 120.0
    series = series * near + 1.0 / 24.0
    series = series * near + 1.0 / 6.0
    series = series * near + 0.5
    phi = tl.where(y < 0.5, weights * near * (1.0 + near * series), factor - weights) / excess
    psi = tl.where(y < 0.5, weights * near * near * series, factor - weights - weights * y) / (excess * excess)
    return weights * y / -excess, phi, psi


@triton.jit
def _query_tiles(
    dq, dp_w, dp_log, dp_phi, dp_psi, w_log, w_phi, w_psi,
    q, do, top, threshold, delta, k_ptr, v_ptr, valid_ptr, index_ptr, k_row, v_row, slope, excess,
    first_row, queries, keys, seed, least, batch, head, first, last,
    DROP: tl.constexpr, MODE: tl.constexpr, OF_ALPHA: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for at in range(first, last):
        column = tl.load(index_ptr + at).to(tl.int32) * COLUMNS
        k = load_rows(k_ptr, k_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        v = load_rows(v_ptr, v_row, column, keys, MASKED, HEAD_DIM, DIM, COLUMNS)
        above = (tl.dot(q, tl.trans(k), input_precision=PRECISION) - top[:, None]) * slope - threshold[:, None]
        if MASKED:
            seen = visible(valid_ptr, first_row, column, queries, keys, CAUSAL, HAS_VALID, ROWS, COLUMNS)
            above = tl.where(seen, above, -1.0)
        weights, factor = weigh(above, excess, MODE)
        # gradients of the weights: what each value would have changed
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROP:
            rows = first_row + tl.arange(0, ROWS)
            kept = kept_along_keys(seed, least, rows, column, batch, head, COLUMNS)
            dp = tl.where(kept, dp, 0.0)
        if OF_ALPHA:
            log, phi, psi = _slopes(above, weights, factor, excess)
            dp_w += tl.sum(dp * weights, 1)
            dp_log += tl.sum(dp * log, 1)
            dp_phi += tl.sum(dp * phi, 1)
            dp_psi += tl.sum(dp * psi, 1)
            w_log += tl.sum(log, 1)
            w_phi += tl.sum(phi, 1)
            w_psi += tl.sum(psi, 1)
        # dp/ds = diag(g) - g g^T / sum g: the mean of dp under g is the same number for the whole row
        ds = factor * (dp - delta[:, None])
        # in the dtype of the keys for the tensor cores; float16 is held to its range, since infinity times a zero of
        # k would be NaN
        dq = tl.dot(narrow(ds, k.dtype), k, dq, input_precision=PRECISION)
    return dq, dp_w, dp_log, dp_phi, dp_psi, w_log, w_phi, w_psi


@triton.jit(do_not_specialize=SIZES)
def _backward_queries(
    q_ptr, k_ptr, v_ptr, valid_ptr, excess_ptr, level_ptr, index_ptr, count_ptr, do_ptr, mean_ptr, dq_ptr,
    delta_ptr, dalpha_ptr, seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row,
    queries, keys, heads, scale, least, rescale,
    DROP: tl.constexpr, MODE: tl.constexpr, OF_ALPHA: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    _, both, batch, head, own, first_row, q, k_ptr, v_ptr, valid_ptr = own_rows(
        q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
        GROUP, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS,
    )  # fmt: skip
    index_ptr, full, total = own_list(index_ptr, count_ptr, own, tl.cdiv(keys, COLUMNS))
    excess = excess_of(excess_ptr, head, MODE)
    slope = excess * scale
    rows = first_row + tl.arange(0, ROWS)
    inside = rows < queries
    offset = batch * do_batch + head * do_head
    do = load_rows(do_ptr + offset, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    mean = load_rows(mean_ptr + offset, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    top, threshold = load_levels(level_ptr, both, rows, queries)
    # mean over g of dp_j = do·v_j is do times the mean of v under g: no pass over the keys is needed for it
    delta = tl.sum(do.to(tl.float32) * mean.to(tl.float32), 1)
    tl.store(delta_ptr + both * queries + rows, delta, mask=inside)
    seed = load_seed(seed_ptr, DROP)
    dq = tl.zeros([ROWS, DIM], tl.float32)
    none = tl.zeros([ROWS], tl.float32)
    dq, dp_w, dp_log, dp_phi, dp_psi, w_log, w_phi, w_psi = _query_tiles(
        dq, none, none, none, none, none, none, none,
        q, do, top, threshold, delta, k_ptr, v_ptr, valid_ptr, index_ptr, k_row, v_row, slope, excess,
        first_row, queries, keys, seed, least, batch, head, 0, full,
        DROP, MODE, OF_ALPHA, HAS_VALID, False, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    dq, dp_w, dp_log, dp_phi, dp_psi, w_log, w_phi, w_psi = _query_tiles(
        dq, dp_w, dp_log, dp_phi, dp_psi, w_log, w_phi, w_psi,
        q, do, top, threshold, delta, k_ptr, v_ptr, valid_ptr, index_ptr, k_row, v_row, slope, excess,
        first_row, queries, keys, seed, least, batch, head, full, total,
        DROP, MODE, OF_ALPHA, True, CAUSAL, HAS_VALID, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
    )  # fmt: skip
    # as in the forward: no weights, and no number either
    dq = tl.where((top == top)[:, None], dq * (scale * rescale), float("nan"))
    store_rows(dq_ptr + batch * dq_batch + head * dq_head, dq_row, first_row, queries, dq, HEAD_DIM, DIM, ROWS)
    if OF_ALPHA:
        # see thresholds.alpha_gradient, with the means written out as sums of this row
        slope_sum = dp_psi + w_phi * dp_log - w_log * dp_phi - dp_w * w_psi
        tl.store(dalpha_ptr + both * queries + rows, -slope_sum * rescale / (1.0 + excess * w_phi), mask=inside)


@triton.jit
def _key_tiles(
    dk, dv, k, v, q_ptr, do_ptr, level_ptr, delta_ptr, index_ptr, q_row, do_row, slope, excess,
    both, column, queries, keys, seed, least, batch, head, first, last,
    DROP: tl.constexpr, MODE: tl.constexpr, PIECES: tl.constexpr, MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # a listed tile has PIECES of ROWS queries
    for at in range(first * PIECES, last * PIECES):
        first_row = (tl.load(index_ptr + at // PIECES).to(tl.int32) * PIECES + at % PIECES) * ROWS
        rows = first_row + tl.arange(0, ROWS)
        inside = rows < queries
        q = load_rows(q_ptr, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        do = load_rows(do_ptr, do_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
        # rows past the end add nothing
        top, threshold = load_levels(level_ptr, both, rows, queries)
        delta = tl.load(delta_ptr + rows, mask=inside, other=0.0)
        # the scores transposed, (COLUMNS, ROWS): the sums below are then plain products with the rows of q and do
        above = (tl.dot(k, tl.trans(q), input_precision=PRECISION) - top[None, :]) * slope - threshold[None, :]
        if MASKED:
            # the causal mask alone: padded keys are dropped once, at the end
            columns = column + tl.arange(0, COLUMNS)
            above = tl.where(columns[:, None] <= (rows + keys - queries)[None, :], above, -1.0)
        weights, factor = weigh(above, excess, MODE)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if DROP:
            kept = kept_along_queries(seed, least, rows, column, batch, head, COLUMNS)
            # as in the forward pass
            weights = rectified(tl.where(kept, weights, 0.0), do.dtype)
            dp = tl.where(kept, dp, 0.0)
        dv = tl.dot(narrow(weights, do.dtype), do, dv, input_precision=PRECISION)
        ds = factor * (dp - delta[None, :])
        dk = tl.dot(narrow(ds, q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def _backward_keys(
    q_ptr, k_ptr, v_ptr, valid_ptr, excess_ptr, level_ptr, index_ptr, count_ptr, do_ptr, delta_ptr, dk_ptr, dv_ptr,
    seed_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row,
    queries, keys, heads, scale, least, rescale,
    DROP: tl.constexpr, MODE: tl.constexpr, PIECES: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column_tile, batch, head, column, k, v = own_columns(
        k_ptr, v_ptr, k_batch, k_head, k_row, v_batch, v_head, v_row, keys, heads // GROUP, HEAD_DIM, DIM, COLUMNS
    )
    seed = load_seed(seed_ptr, DROP)
    dk = tl.zeros([COLUMNS, DIM], tl.float32)
    dv = tl.zeros([COLUMNS, DIM], tl.float32)
    for member in range(GROUP):
        both, of_query, own_q, own_do = own_member(
            member, q_ptr, do_ptr, q_batch, q_head, do_batch, do_head, batch, head, heads, GROUP
        )
        own = both * tl.cdiv(keys, COLUMNS) + column_tile
        list_ptr, masked, total = own_list(index_ptr, count_ptr, own, tl.cdiv(queries, ROWS * PIECES))
        excess = excess_of(excess_ptr, of_query, MODE)
        slope = excess * scale
        own_delta = delta_ptr + both * queries
        if CAUSAL:
            dk, dv = _key_tiles(
                dk, dv, k, v, own_q, own_do, level_ptr, own_delta, list_ptr, q_row, do_row, slope, excess,
                both, column, queries, keys, seed, least, batch, of_query, 0, masked,
                DROP, MODE, PIECES, True, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
            )  # fmt: skip
        dk, dv = _key_tiles(
            dk, dv, k, v, own_q, own_do, level_ptr, own_delta, list_ptr, q_row, do_row, slope, excess,
            both, column, queries, keys, seed, least, batch, of_query, masked, total,
            DROP, MODE, PIECES, False, HEAD_DIM, DIM, ROWS, COLUMNS, PRECISION,
        )  # fmt: skip
    store_key_gradients(
        dk_ptr, dv_ptr, valid_ptr, dk * (scale * rescale), dv * rescale, batch, head, column,
        dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, keys, HAS_VALID, HEAD_DIM, DIM, COLUMNS,
    )  # fmt: skip
