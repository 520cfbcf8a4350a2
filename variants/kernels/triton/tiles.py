"""Tiles of the score matrix that Triton kernels visit: their size, what may be seen in them, lists of those in use.

A list of each row tile names its column tiles. A map has a byte per tile, (batch * heads, row tiles, column tiles), 1 =
the tile holds a weight; of it lists of the row tiles of each column tile are made on the device, with no word to the
host. All are int16, ascending, with two counts each: the tiles before the first one that needs no look at the mask
(columns) or needs one (rows), and all. Map and lists take 5 bytes a tile, which is 0.03 % of the scores in 16 bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .interpreter import interpreted
from .launch import SIZES, launch

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores times this are in powers of two: exp2 is an instruction of the hardware, exp is that and a multiplication."""


_PTX = tl.constexpr(not interpreted() and torch.version.hip is None)
"""True if a kernel may name an instruction of the hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Queries and keys of a tile, both powers of two from 16; warps and pipeline stages of the kernels."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLists:
    """indices (batch * heads, tiles, room) int16 and counts (batch * heads, tiles, 2) int32, as the module says."""

    indices: Tensor
    counts: Tensor


def padded(head_dim: int) -> int:
    """head_dim as `tl.dot` takes it: a power of two from 16."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def precision(dtype: torch.dtype) -> str:
    """The precision of `tl.dot`, in every pass alike: float32 by three products on tensor cores, nearly as exact."""
    # "ieee" has no tensor cores: such kernels took minutes to compile and kept kilobytes of a thread in memory
    return "tf32x3" if dtype == torch.float32 else "tf32"


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Strides (batch, heads, length) of each, 0 where there is but one; the last dimension has 1."""
    # of one, PyTorch keeps any number, for which a kernel would be compiled anew
    return tuple(0 if n == 1 else stride for x in tensors for n, stride in zip(x.shape[:3], x.stride(), strict=False))


def constants(query: Tensor, key: Tensor, valid: Tensor | None, causal: bool, tiles: Tiles) -> dict[str, Any]:
    """The constexprs that all kernels of attention over tiles have."""
    # constants and not arguments: the compiler drops the masks that a kernel does not need and unrolls over
    # dimensions
    head_dim = query.shape[-1]
    return {
        # heads of queries that share keys; with one a loop over them is none
        "GROUP": query.shape[1] // key.shape[1],
        "CAUSAL": causal,
        "HAS_VALID": valid is not None,
        "HEAD_DIM": head_dim,
        "DIM": padded(head_dim),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "PRECISION": precision(query.dtype),
    }


def empty_map(query: Tensor, key: Tensor, tiles: Tiles) -> Tensor:
    """A map of the tiles of query and key, all 0: (batch * heads, row tiles, column tiles), uint8."""
    batch, heads, queries, _ = query.shape
    # zeros: a tile that no program visits, above the diagonal of a causal mask, holds no weight
    shape = (batch * heads, triton.cdiv(queries, tiles.rows), triton.cdiv(key.shape[2], tiles.columns))
    return query.new_zeros(shape, dtype=torch.uint8)


def list_tiles(used: Tensor, queries: int, keys: int, tiles: Tiles, causal: bool) -> TileLists:
    """Lists of the row tiles in the map `used`, one for each column tile."""
    heads, row_tiles, column_tiles = used.shape
    indices = used.new_empty((heads, column_tiles, row_tiles), dtype=torch.int16)
    counts = used.new_empty((heads, column_tiles, 2), dtype=torch.int32)
    launch(
        _list_tiles, (column_tiles * heads,), used, indices, counts, queries, keys,
        warps=4, CAUSAL=causal, ROWS=tiles.rows, COLUMNS=tiles.columns, CHUNK=512,
    )  # fmt: skip
    return TileLists(indices=indices, counts=counts)


@triton.jit
def own_tile(tiles):
    """The number of this program's tile in its head, and its (batch, head), int64; tiles of a head lie side by side.

    Both are in the first dimension of the grid, since the second ends at 65,535.
    """
    return tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)


@triton.jit
def own_rows(
    q_ptr, k_ptr, v_ptr, valid_ptr, q_batch, q_head, q_row, k_batch, k_head, v_batch, v_head, queries, keys, heads,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The start of every kernel that goes along the keys: its row tile, and where its head lies.

    Returns the row tile; (batch, head) as one number and as two; the number of the tile among those of all heads; its
    first row; its queries (ROWS, DIM); and the pointers to keys, values and mask moved to the head.
    """
    row_tiles = tl.cdiv(queries, ROWS)
    row_tile, both = own_tile(row_tiles)
    if CAUSAL:
        # programs start in order: the longest rows first, so that no long one is left over at the end
        row_tile = row_tiles - 1 - row_tile
    batch, head = both // heads, both % heads
    first_row = row_tile * ROWS
    # in the last tile rows lie past the end: they are zero, and `store_rows` drops what is computed for them
    q = load_rows(q_ptr + batch * q_batch + head * q_head, q_row, first_row, queries, True, HEAD_DIM, DIM, ROWS)
    # keys and values have a head for each GROUP of heads
    k_ptr += batch * k_batch + head // GROUP * k_head
    v_ptr += batch * v_batch + head // GROUP * v_head
    if HAS_VALID:
        valid_ptr += batch * keys
    else:
        # Triton 3.6 returns no None in a tuple; without a mask nobody reads it
        valid_ptr = k_ptr
    return row_tile, both, batch, head, both * row_tiles + row_tile, first_row, q, k_ptr, v_ptr, valid_ptr


@triton.jit
def own_columns(
    k_ptr, v_ptr, k_batch, k_head, k_row, v_batch, v_head, v_row, keys, kv_heads,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The start of every kernel that goes along the queries: its column tile of a head of keys.

    Returns the column tile; batch and head; its first column; its keys and values, both (COLUMNS, DIM). The program
    then goes through the heads of queries that share these keys, `own_member` each, and so is the one writer of its
    sums.
    """
    column_tile, both = own_tile(tl.cdiv(keys, COLUMNS))
    batch, head = both // kv_heads, both % kv_heads
    column = column_tile * COLUMNS
    k = load_rows(k_ptr + batch * k_batch + head * k_head, k_row, column, keys, True, HEAD_DIM, DIM, COLUMNS)
    v = load_rows(v_ptr + batch * v_batch + head * v_head, v_row, column, keys, True, HEAD_DIM, DIM, COLUMNS)
    return column_tile, batch, head, column, k, v


@triton.jit
def own_member(member, q_ptr, do_ptr, q_batch, q_head, do_batch, do_head, batch, head, heads, GROUP: tl.constexpr):
    """One of the heads of queries that share the keys of `head`: where it lies.

    Returns (batch, its head) as one number; its head; and the pointers to its queries and to its output gradient.
    """
    of_query = head * GROUP + member
    own_q, own_do = q_ptr + batch * q_batch + of_query * q_head, do_ptr + batch * do_batch + of_query * do_head
    return batch * heads + of_query, of_query, own_q, own_do


@triton.jit
def own_list(index_ptr, count_ptr, own, room):
    """The list of tile number `own`, of `room` places, and its two counts; see the head of this file."""
    return index_ptr + own * room, tl.load(count_ptr + own * 2), tl.load(count_ptr + own * 2 + 1)


@triton.jit
def store_key_gradients(
    dk_ptr, dv_ptr, valid_ptr, dk, dv, batch, head, column, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, keys,
    HAS_VALID: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of a tile of keys and of values, both (COLUMNS, DIM), zero for padded keys.

    Along the queries no kernel looks at `valid`: a padded key meets nothing but its own row of both sums, so dropping
    that row here, once, is enough.
    """
    if HAS_VALID:
        columns = column + tl.arange(0, COLUMNS)
        kept = tl.load(valid_ptr + batch * keys + columns, mask=columns < keys, other=0) != 0
        dk = tl.where(kept[:, None], dk, 0.0)
        dv = tl.where(kept[:, None], dv, 0.0)
    store_rows(dk_ptr + batch * dk_batch + head * dk_head, dk_row, column, keys, dk, HEAD_DIM, DIM, COLUMNS)
    store_rows(dv_ptr + batch * dv_batch + head * dv_head, dv_row, column, keys, dv, HEAD_DIM, DIM, COLUMNS)


@triton.jit
def rectified(x, dtype: tl.constexpr):
    """max(x, 0) in `dtype`, NaN where x is NaN, and the largest float16 for what is larger."""
    # one instruction for two numbers, in the place of a maximum each and a conversion. PTX ISA, cvt: relu and satfinite
    # keep NaN; the first operand becomes the upper half
    if _PTX and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif _PTX and dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "cvt.rn.relu.satfinite.f16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        # by default a maximum on a GPU leaves NaN out
        return narrow(tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL), dtype)


@triton.jit
def softmax_step(scores, top, total):
    """One more tile of an online softmax: its weights, the factor for earlier sums, the new maximum and the new total.

    scores: (ROWS, COLUMNS), in powers of two; top and total: (ROWS,), of the tiles so far. Milakov & Gimelshein 2018,
    Online normalizer calculation for softmax.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    # a row that has seen no key yet has no top; -inf less -inf would be NaN, and its weights are zero at any level
    level = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights, shrink = tl.exp2(scores - level[:, None]), tl.exp2(top - level)
    return weights, shrink, new_top, total * shrink + tl.sum(weights, 1)


@triton.jit
def softmax_end(top, total):
    """One over the total of each row, zero of a row without a key; and its log mass, by which the backward pass finds
    the weights again from scores alone: infinity of a row without a key, so that exp2(score - mass) is zero."""
    seen_any = total > 0.0
    safe = tl.where(seen_any, total, 1.0)
    return tl.where(seen_any, 1.0 / safe, 0.0), tl.where(seen_any, top + tl.log2(safe), float("inf"))


@triton.jit(do_not_specialize=SIZES)
def _list_tiles(
    map_ptr, index_ptr, count_ptr, queries, keys,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    # one program for each list; it reads its column of the map in chunks
    row_tiles, column_tiles = tl.cdiv(queries, ROWS), tl.cdiv(keys, COLUMNS)
    column_tile, both = own_tile(column_tiles)
    at = both * column_tiles + column_tile
    map_ptr += both * row_tiles * column_tiles + column_tile
    index_ptr += at * row_tiles
    split = first_full_row(column_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    before, total = 0, 0
    for first in range(0, row_tiles, CHUNK):
        tile = first + tl.arange(0, CHUNK)
        used = tl.load(map_ptr + tile * column_tiles, mask=tile < row_tiles, other=0).to(tl.int32)
        # where each used tile of the chunk goes: how many used ones stand before it
        place = total + tl.cumsum(used, 0) - used
        # in order and by one program, so that sums over the list have one order at every run
        tl.store(index_ptr + place, tile.to(tl.int16), mask=used > 0)
        # the list is ascending, so one count parts it into tiles with and without a look at the mask
        before += tl.sum(tl.where(tile < split, used, 0))
        total += tl.sum(used)
    tl.store(count_ptr + at * 2, before)
    tl.store(count_ptr + at * 2 + 1, total)


@triton.jit
def seen_columns(row_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The number of column tiles that any query of the row tile may see."""
    last = keys
    if CAUSAL:
        # the last query of the tile sees the most: query i sees keys up to i + keys - queries
        last = tl.maximum(tl.minimum(keys, (row_tile + 1) * ROWS + keys - queries), 0)
    return tl.cdiv(last, COLUMNS)


@triton.jit
def full_columns(row_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The number of column tiles that all queries of the row tile see whole; they come first."""
    whole = keys
    if CAUSAL:
        # the first query of the tile sees the least
        whole = tl.maximum(tl.minimum(keys, row_tile * ROWS + keys - queries + 1), 0)
    return whole // COLUMNS


@triton.jit
def real_columns(valid_ptr, keys, HAS_VALID: tl.constexpr, COLUMNS: tl.constexpr):
    """The number of column tiles up to the last real key; behind them lies padding, which no program visits.

    A text of a third of the longest leaves a third of the products. `valid_ptr` is that of the sequence.
    """
    last = keys
    if HAS_VALID:
        last = 0
        # a kibibyte at a time: nothing beside a tile's products
        for first in range(0, keys, 1024):
            columns = first + tl.arange(0, 1024)
            real = tl.load(valid_ptr + columns, mask=columns < keys, other=0) != 0
            last = tl.maximum(last, tl.max(tl.where(real, columns + 1, 0)))
    return tl.cdiv(last, COLUMNS)


@triton.jit
def columns_to_visit(
    row_tile, valid_ptr, queries, keys, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """`full_columns` and `seen_columns` of the row tile, both without the tiles of padding at the end."""
    real = real_columns(valid_ptr, keys, HAS_VALID, COLUMNS)
    full = full_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS)
    return tl.minimum(full, real), tl.minimum(seen_columns(row_tile, queries, keys, CAUSAL, ROWS, COLUMNS), real)


@triton.jit
def rows_to_visit(valid_ptr, batch, column, keys, row_tiles, HAS_VALID: tl.constexpr, COLUMNS: tl.constexpr):
    """All `row_tiles` where the tile of keys from `column` on holds a real one; of padding alone none."""
    if HAS_VALID:
        columns = column + tl.arange(0, COLUMNS)
        real = tl.load(valid_ptr + batch * keys + columns, mask=columns < keys, other=0) != 0
        row_tiles = tl.where(tl.max(real.to(tl.int32)) > 0, row_tiles, 0)
    return row_tiles


@triton.jit
def first_full_row(column_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The first row tile whose queries all see the whole column tile; the later ones do too."""
    if CAUSAL:
        # the first query that sees the last key of the tile, and from it whole row tiles only
        return tl.cdiv(tl.maximum((column_tile + 1) * COLUMNS - 1 - (keys - queries), 0), ROWS)
    else:
        return 0


@triton.jit
def first_seen_row(column_tile, queries, keys, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The first row tile with a query that sees the first key of the column tile, under a causal mask."""
    return tl.maximum(column_tile * COLUMNS - (keys - queries), 0) // ROWS


@triton.jit
def load_rows(ptr, stride, first, length, CHECK: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
              ROWS: tl.constexpr):  # fmt: skip
    """(ROWS, DIM) from row `first` on, zero outside; CHECK says that rows may lie past the end."""
    rows = first + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    at = ptr + rows[:, None] * stride + dims[None, :]
    if CHECK and HEAD_DIM == DIM:
        return tl.load(at, mask=rows[:, None] < length, other=0.0)
    elif CHECK:
        return tl.load(at, mask=(rows[:, None] < length) & (dims[None, :] < HEAD_DIM), other=0.0)
    elif HEAD_DIM == DIM:
        return tl.load(at)
    else:
        return tl.load(at, mask=dims[None, :] < HEAD_DIM, other=0.0)


@triton.jit
def store_rows(ptr, stride, first, length, values, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr):
    """Writes (ROWS, DIM), in the dtype of the tensor, what lies inside of it."""
    rows = first + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    at = ptr + rows[:, None] * stride + dims[None, :]
    inside = (rows[:, None] < length) & (dims[None, :] < HEAD_DIM)
    tl.store(at, narrow(values, ptr.dtype.element_ty), mask=inside)


@triton.jit
def visible(valid_ptr, first_row, first_column, queries, keys, CAUSAL: tl.constexpr, HAS_VALID: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(ROWS, COLUMNS), or (1, COLUMNS) where all rows are alike: which keys each query may see."""
    columns = first_column + tl.arange(0, COLUMNS)
    # keys past the end were loaded as zeros: a score of zero is no mask, so they are hidden like padded ones
    seen = columns < keys
    if HAS_VALID:
        seen = seen & (tl.load(valid_ptr + columns, mask=columns < keys, other=0) != 0)
    seen = seen[None, :]
    if CAUSAL:
        rows = first_row + tl.arange(0, ROWS) + keys - queries
        seen = seen & (columns[None, :] <= rows[:, None])
    return seen


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """Convert to `dtype`; what float16 cannot hold is its largest value, since infinity times zero would spread."""
    if dtype == tl.float16:
        # NaN stays: it must not look like a large number
        low = tl.maximum(values, -65504.0, propagate_nan=tl.PropagateNan.ALL)
        return tl.minimum(low, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(dtype)
    else:
        return values.to(dtype)


@triton.jit
def converted(weights, dtype: tl.constexpr, RECTIFIED: tl.constexpr):
    """Weights in `dtype`, of ReLU by `rectified`."""
    if RECTIFIED:
        return rectified(weights, dtype)
    else:
        return narrow(weights, dtype)
