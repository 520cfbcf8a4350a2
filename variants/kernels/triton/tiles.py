"""Tiles of the score matrix that Triton kernels visit: their size, what may be seen in them, lists of those in use.

A map has a byte per tile, (batch * heads, row tiles, column tiles), 1 = the tile holds a weight. Lists are made of it
on the device, with no word to the host: the column tiles of each row tile, and the row tiles of each column tile,
int16, ascending, with two counts each: the tiles before the first one that needs no look at the mask (columns) or
needs one (rows), and all. Map and lists take 5 bytes a tile, which is 0.03 % of the scores in 16 bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch


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
    """How `tl.dot` multiplies, in every pass alike: float32 by three products on tensor cores, nearly as exact."""
    # "ieee" has no tensor cores: such kernels took minutes to compile and kept kilobytes of a thread in memory
    return "tf32x3" if dtype == torch.float32 else "tf32"


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Those of (batch, heads, length) of each; the last dimension has 1."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def constants(query: Tensor, keep: Tensor | None, causal: bool, tiles: Tiles) -> dict[str, Any]:
    """The constexprs that all kernels of attention over tiles have."""
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


def empty_map(query: Tensor, key: Tensor, tiles: Tiles) -> Tensor:
    batch, heads, queries, _ = query.shape
    shape = (batch * heads, triton.cdiv(queries, tiles.rows), triton.cdiv(key.shape[2], tiles.columns))
    return query.new_zeros(shape, dtype=torch.uint8)


def list_tiles(used: Tensor, queries: int, keys: int, tiles: Tiles, causal: bool, *, by_rows: bool) -> TileLists:
    """Lists of the tiles in the map `used`: of each row tile, or of each column tile."""
    heads, row_tiles, column_tiles = used.shape
    major, minor = (row_tiles, column_tiles) if by_rows else (column_tiles, row_tiles)
    indices = used.new_empty((heads, major, minor), dtype=torch.int16)
    counts = used.new_empty((heads, major, 2), dtype=torch.int32)
    of_major, of_minor = used.stride(1 if by_rows else 2), used.stride(2 if by_rows else 1)
    launch(
        _list_tiles, (major * heads,), used, indices, counts, used.stride(0), of_major, of_minor, minor, queries, keys,
        warps=4, CAUSAL=causal, BY_ROWS=by_rows, ROWS=tiles.rows, COLUMNS=tiles.columns, CHUNK=512,
    )  # fmt: skip
    return TileLists(indices=indices, counts=counts)


@triton.jit
def own_tile(tiles):
    """Which of the `tiles` of a head this program has, and which (batch, head), int64: tiles of a head side by side.

    Both are in the first dimension of the grid, since the second ends at 65,535.
    """
    return tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)


@triton.jit
def _list_tiles(
    map_ptr, index_ptr, count_ptr, of_head, of_major, of_minor, minor, queries, keys,
    CAUSAL: tl.constexpr, BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    majors = tl.cdiv(queries, ROWS) if BY_ROWS else tl.cdiv(keys, COLUMNS)
    major, both = own_tile(majors)
    at = both * majors + major
    map_ptr += both * of_head + major * of_major
    index_ptr += at * minor
    if BY_ROWS:
        split = full_columns(major, queries, keys, CAUSAL, ROWS, COLUMNS)
    else:
        split = first_full_row(major, queries, keys, CAUSAL, ROWS, COLUMNS)
    before, total = 0, 0
    for first in range(0, minor, CHUNK):
        tile = first + tl.arange(0, CHUNK)
        used = tl.load(map_ptr + tile * of_minor, mask=tile < minor, other=0).to(tl.int32)
        place = total + tl.cumsum(used, 0) - used
        tl.store(index_ptr + place, tile.to(tl.int16), mask=used > 0)
        before += tl.sum(tl.where(tile < split, used, 0))
        total += tl.sum(used)
    tl.store(count_ptr + at * 2, before)
    tl.store(count_ptr + at * 2 + 1, total)


@triton.jit
def seen_columns(row_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """How many column tiles any query of the row tile may see."""
    last = keys
    if CAUSAL:
        last = tl.maximum(tl.minimum(keys, (row_tile + 1) * ROWS + keys - queries), 0)
    return tl.cdiv(last, COLUMNS)


@triton.jit
def full_columns(row_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """How many column tiles all queries of the row tile see whole; they come first."""
    whole = keys
    if CAUSAL:
        whole = tl.maximum(tl.minimum(keys, row_tile * ROWS + keys - queries + 1), 0)
    return whole // COLUMNS


@triton.jit
def first_full_row(column_tile, queries, keys, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The first row tile whose queries all see the whole column tile; the later ones do too."""
    if CAUSAL:
        return tl.cdiv(tl.maximum((column_tile + 1) * COLUMNS - 1 - (keys - queries), 0), ROWS)
    else:
        return 0


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
def visible(keep_ptr, first_row, first_column, queries, keys, CAUSAL: tl.constexpr, HAS_KEEP: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(ROWS, COLUMNS), or (1, COLUMNS) where all rows are alike: which keys each query may see."""
    columns = first_column + tl.arange(0, COLUMNS)
    seen = columns < keys
    if HAS_KEEP:
        seen = seen & (tl.load(keep_ptr + columns, mask=columns < keys, other=0) != 0)
    seen = seen[None, :]
    if CAUSAL:
        rows = first_row + tl.arange(0, ROWS) + keys - queries
        seen = seen & (columns[None, :] <= rows[:, None])
    return seen


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """In `dtype`; what float16 cannot hold becomes its largest number, since infinity times zero would spread."""
    if dtype == tl.float16:
        return tl.minimum(tl.maximum(values, -65504.0), 65504.0).to(dtype)
    else:
        return values.to(dtype)
