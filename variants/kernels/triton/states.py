"""States of linear attention: chunks of keys or queries folded to phi(X)^T Y, and their sums along the sequence."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import SIZES, launch

# chunks summed at a time, and numbers of a state that one program sums
_GROUP, _SPREAD = 16, 256


@triton.jit
def _phi(x):
    # elu(x) + 1; exp of what is positive is never computed, so it cannot overflow
    return tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)))


@triton.jit
def product(left, right, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """left @ right in the dtype DOT, summed in float32."""
    return tl.dot(left.to(DOT), right.to(DOT), input_precision=PRECISION)


@triton.jit
def tile(source, row, at, count, columns, width):
    """Rows `at` of (rows, count, width), float32; zeros outside."""
    inside = ((at >= 0) & (at < count))[:, None] & (columns < width)[None, :]
    place = (row * count + at)[:, None] * width + columns[None, :]
    return tl.load(source + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def real_rows(kept, row, heads, at, count, padded):
    """True for rows `at` that exist and are no padding; `padded` is 1, or 0 where `kept` holds nothing."""
    # no constant, which would double the kernels: a chunk's mask is a line of memory beside its rows
    listed = (at >= 0) & (at < padded * count)
    return (at >= 0) & (at < count) & (tl.load(kept + row // heads * count + at, mask=listed, other=1) != 0)


@triton.jit
def features_of(source, row, at, count, columns, width, real, DOT: tl.constexpr):
    """phi of the rows that are real, rounded as they are multiplied, so that numerator and denominator agree."""
    features = _phi(tile(source, row, at, count, columns, width))
    return tl.where(real[:, None] & (columns < width)[None, :], features, 0.0).to(DOT)


@triton.jit
def inverse(total, row, at, count):
    """One over the denominators of the queries `at`; zero outside."""
    inside = (at >= 0) & (at < count)
    return tl.where(inside, 1.0 / tl.load(total + row * count + at, mask=inside, other=1.0), 0.0)


@triton.jit(do_not_specialize=SIZES)
def fold(
    source, value, kept, total, inner, state, mass, heads, padded, width, chunks, count, shift,
    OF_QUERY: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk -> one block of phi(K)^T V and of the sum of phi(K); of phi(Q)^T dO / total for the queries."""
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    at = program % chunks * CHUNK + tl.arange(0, CHUNK) - shift
    down = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    across = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    if OF_QUERY:
        real = (at >= 0) & (at < count)
        scale = inverse(total, row, at, count)
        # beside phi(Q)^T dO / total, the backward needs the sum of -phi(Q) (dO·O) / total: the gradient of the
        # denominator
        extra = -scale * tl.load(inner + row * count + at, mask=real, other=0.0)
    else:
        real = real_rows(kept, row, heads, at, count, padded)
        scale = tl.where(real, 1.0, 0.0)
        extra = scale
    features = features_of(source, row, at, count, down, width, real, DOT)
    values = tile(value, row, at, count, across, width) * scale[:, None]
    found = product(tl.trans(features), values, DOT, PRECISION)
    place = program.to(tl.int64) * width
    inside = (down < width)[:, None] & (across < width)[None, :]
    tl.store(state + (place + down)[:, None] * width + across[None, :], found, mask=inside)
    # the sum of phi(K) has no second dimension, so one block of columns writes it
    if tl.program_id(2) == 0:
        tl.store(mass + place + down, tl.sum(features.to(tl.float32) * extra[:, None], 0), mask=down < width)


@triton.jit(do_not_specialize=SIZES)
def accumulate(parts, sums, chunks, size, REVERSE: tl.constexpr, GROUP: tl.constexpr, SPREAD: tl.constexpr):
    """Sums over the chunks before each one (after each one), never one less its own: that would let its digits in."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPREAD + tl.arange(0, SPREAD)
    wide = (column < size)[None, :]
    carried = tl.zeros([SPREAD], tl.float32)
    for first in range(0, chunks, GROUP):
        step = first + tl.arange(0, GROUP)
        to = chunks - 1 - step if REVERSE else step
        # shifted by one: a chunk gets the sum of those before it, without its own
        neighbour = to + 1 if REVERSE else to - 1
        known = ((neighbour >= 0) & (neighbour < chunks))[:, None] & wide
        part = tl.load(parts + (row * chunks + neighbour)[:, None] * size + column[None, :], mask=known, other=0.0)
        summed = tl.cumsum(part, 0) + carried[None, :]
        place = sums + (row * chunks + to)[:, None] * size + column[None, :]
        tl.store(place, summed, mask=(step < chunks)[:, None] & wide)
        # programs run along the chunks, not across them: one order of summation at every run
        carried += tl.sum(part, 0)


def summed(parts: Tensor, reverse: bool) -> Tensor:
    """Sums of (rows, chunks, …) over the chunks before each, or after each."""
    sums, size = torch.empty_like(parts), parts[0, 0].numel()
    launch(
        accumulate, (parts.shape[0], triton.cdiv(size, _SPREAD)), parts, sums, parts.shape[1], size,
        REVERSE=reverse, GROUP=_GROUP, SPREAD=_SPREAD,
    )  # fmt: skip
    return sums
