"""Linear attention with features elu(x) + 1 as a chunked scan on a GPU.

Each chunk of keys is folded to a state phi(K)^T [V 1]; states are summed along the sequence; each chunk of queries
meets the state before it and, by a triangular product, its own chunk. The backward pass is the same three steps, once
more for the queries and from the end for keys and values: two kernels serve four gradients.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from .launch import SIZES, CompileCase, launch, prepared
from .states import features_of, fold, inverse, product, real_rows, summed, tile
from .tiles import padded

_CHUNK = 64


def linear_attention(query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, causal: bool) -> Tensor:
    """Linear attention with features elu(x) + 1, (batch, heads, queries, head_dim); `linear.Linear` is the definition.

    query: (batch, heads, queries, head_dim); key, value: (batch, heads, keys, head_dim), all of one dtype; valid:
    Boolean (batch, keys) or None. Causal aligns at the last key. A query without a key gives zeros. Work O(N d^2); kept
    for the backward pass are the inputs, the output and one float32 per query. Differentiable once, the same bits at
    every run. Ask `launch.reason` first.
    """
    # states and rows are addressed as (rows, length, width)
    query, key, value, valid = prepared(query, key, value, valid, whole=True)
    return cast(Tensor, LinearAttention.apply(query, key, value, valid, causal))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinearPlan:
    """The chunks of positions of all sequences; causal sequences end together, others begin together."""

    rows: int
    heads: int
    queries: int
    keys: int
    width: int
    causal: bool
    padded: bool
    half: bool
    bfloat16: bool

    @property
    def length(self) -> int:
        """Positions of the longer sequence."""
        return max(self.queries, self.keys)

    def shift(self, of_query: bool) -> int:
        """Position of the first query, or of the first key."""
        return self.length - (self.queries if of_query else self.keys) if self.causal else 0

    def chunks(self, of_query: bool) -> int:
        """Chunks up to the last query or key, those before the first one included."""
        return -(-(self.length if self.causal else self.queries if of_query else self.keys) // _CHUNK)

    @property
    def fits(self) -> int:
        """head_dim as a block of Triton: a power of two."""
        return padded(self.width)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The arguments of every kernel."""
        return self.heads, int(self.padded), self.width

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of every kernel.

        float16 is multiplied as TF32: as many digits, and no lack of range; float32 as three TF32 products, since
        products without tensor cores spill.
        """
        return {
            "CHUNK": _CHUNK,
            "WIDTH": self.fits,
            "BLOCK": min(64, self.fits),
            "DOT": tl.bfloat16 if self.bfloat16 else tl.float32,
            "PRECISION": "tf32" if self.half else "tf32x3",
            "warps": 4 if self.fits <= 64 else 8,
            "stages": 1,
        }


class LinearAttention(torch.autograd.Function):
    """Output of query (batch, heads, queries, d), key and value (batch, heads, keys, d), valid (batch, keys)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, causal: bool) -> Tensor:
        plan = _LinearPlan(
            rows=query.shape[0] * query.shape[1],
            heads=query.shape[1],
            queries=query.shape[2],
            keys=key.shape[2],
            width=query.shape[3],
            causal=causal,
            padded=valid is not None,
            half=query.dtype is torch.float16,
            bfloat16=query.dtype is torch.bfloat16,
        )
        kept = key.new_empty(1, dtype=torch.uint8) if valid is None else valid.to(torch.uint8)
        output = torch.empty_like(query)
        total = query.new_empty(plan.rows, plan.queries, dtype=torch.float32)
        state, mass = _states(plan, key, value, kept, total, total, of_query=False)
        launch(
            _mix, _grid(plan, of_query=True),
            query, key, value, kept, state, mass, total, output, *plan.sizes,
            plan.queries, plan.shift(True), plan.keys, plan.shift(False), *_span(plan, of_query=True),
            REVERSE=False, CAUSAL=causal, **plan.constants,
        )  # fmt: skip
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, kept, output, total)
        return output

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        plan: _LinearPlan = ctx.plan
        query, key, value, kept, output, total = ctx.saved_tensors
        gradient = gradient.contiguous()
        # dO·O of each query: the gradient of its denominator, up to the denominator itself
        inner = torch.einsum("bhnd,bhnd->bhn", gradient.float(), output.float()).contiguous()
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        flags: dict[str, Any] = {"CAUSAL": plan.causal, **plan.constants}
        ends = (plan.queries, plan.shift(True), plan.keys, plan.shift(False))
        state, mass = _states(plan, key, value, kept, total, inner, of_query=False)
        launch(
            _turn, _grid(plan, of_query=True),
            query, key, value, gradient, kept, state, mass, total, inner, of_query, *plan.sizes,
            *ends, *_span(plan, of_query=True), REVERSE=False, **flags,
        )  # fmt: skip
        # keys and values receive from the queries at and after them: states of the queries, summed from the end
        state, mass = _states(plan, query, gradient, kept, total, inner, of_query=True)
        ends = (plan.keys, plan.shift(False), plan.queries, plan.shift(True))
        launch(
            _turn, _grid(plan, of_query=False),
            key, query, gradient, value, kept, state, mass, total, inner, of_key, *plan.sizes,
            *ends, *_span(plan, of_query=False), REVERSE=True, **flags,
        )  # fmt: skip
        launch(
            _mix, _grid(plan, of_query=False),
            key, query, gradient, kept, state, mass, total, of_value, *plan.sizes,
            *ends, *_span(plan, of_query=False), REVERSE=True, **flags,
        )  # fmt: skip
        return of_query, of_key, of_value, None, None


def _span(plan: _LinearPlan, *, of_query: bool) -> tuple[int, int, int]:
    """Chunks that have a row of their own, the first of them, and how many states there are."""
    # of the shorter sequence, positions before its first one: those chunks have no row
    skipped = plan.shift(of_query) // _CHUNK
    return plan.chunks(of_query) - skipped, skipped, plan.chunks(not of_query) if plan.causal else 1


def _grid(plan: _LinearPlan, *, of_query: bool) -> tuple[int, int]:
    return plan.rows * _span(plan, of_query=of_query)[0], triton.cdiv(plan.fits, min(64, plan.fits))


def _states(
    plan: _LinearPlan, source: Tensor, value: Tensor, kept: Tensor, total: Tensor, inner: Tensor, *, of_query: bool
) -> tuple[Tensor, Tensor]:
    """States (rows, chunks | 1, width, width) and their masses (rows, chunks | 1, width), float32.

    Forward, the sums over the keys before each chunk of queries; backward, with `of_query`, the sums over the queries,
    with their output gradients, after each chunk of keys. Without a causal mask one state for all chunks.
    """
    chunks, blocks = plan.chunks(of_query), triton.cdiv(plan.fits, min(64, plan.fits))
    state = source.new_empty(plan.rows, chunks, plan.width, plan.width, dtype=torch.float32)
    mass = source.new_empty(plan.rows, chunks, plan.width, dtype=torch.float32)
    launch(
        fold, (plan.rows * chunks, blocks, blocks),
        source, value, kept, total, inner, state, mass, *plan.sizes, chunks,
        plan.queries if of_query else plan.keys, plan.shift(of_query),
        OF_QUERY=of_query, **plan.constants,
    )  # fmt: skip
    if not plan.causal:
        # not causal: one state for all, in the order of torch's own sum
        return state.sum(1, keepdim=True), mass.sum(1, keepdim=True)
    return summed(state, of_query), summed(mass, of_query)


@triton.jit(do_not_specialize=SIZES)
def _mix(
    own, other, value, kept, state, mass, total, result, heads, padded, width,
    own_count, own_shift, other_count, other_shift, chunks, skipped, states,
    REVERSE: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output of a chunk of queries, phi(q) S / phi(q) z; or, reversed, the gradient of a chunk of values, phi(k) R."""
    program = tl.program_id(0)
    row, chunk = (program // chunks).to(tl.int64), program % chunks + skipped
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    own_at, other_at = position - own_shift, position - other_shift
    column, across = tl.arange(0, WIDTH), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if REVERSE:
        own_real = real_rows(kept, row, heads, own_at, own_count, padded)
    else:
        own_real = (own_at >= 0) & (own_at < own_count)
    features = features_of(own, row, own_at, own_count, column, width, own_real, DOT)
    place = (row * states + (chunk if CAUSAL else 0)) * width
    inside = (column < width)[:, None] & (across < width)[None, :]
    known = tl.load(state + (place + column)[:, None] * width + across[None, :], mask=inside, other=0.0)
    # what all chunks before bring
    sums = product(features, known, DOT, PRECISION)
    masses = tl.load(mass + place + column, mask=column < width, other=0.0)
    below = tl.sum(features.to(tl.float32) * masses[None, :], 1)
    if CAUSAL:
        if REVERSE:
            other_real = (other_at >= 0) & (other_at < other_count)
            scale = inverse(total, row, other_at, other_count)
            seen = position[:, None] <= position[None, :]
        else:
            other_real = real_rows(kept, row, heads, other_at, other_count, padded)
            scale = tl.where(other_real, 1.0, 0.0)
            seen = position[:, None] >= position[None, :]
        others = features_of(other, row, other_at, other_count, column, width, other_real, DOT)
        # and what the own chunk brings: its scores, masked to the triangle
        weight = tl.where(seen, product(features, tl.trans(others), DOT, PRECISION), 0.0).to(DOT)
        values = tile(value, row, other_at, other_count, across, width) * scale[:, None]
        sums += product(weight, values, DOT, PRECISION)
        below += tl.sum(weight.to(tl.float32), 1)
    if not REVERSE:
        # a query without a key has a sum of zero, and zeros over one are zeros
        below = tl.where(below > 0.0, below, 1.0)
        sums = sums / below[:, None]
        if tl.program_id(1) == 0:
            tl.store(total + row * own_count + own_at, below, mask=own_real)
    exists = ((own_at >= 0) & (own_at < own_count))[:, None] & (across < width)[None, :]
    target = result + (row * own_count + own_at)[:, None] * width + across[None, :]
    tl.store(target, sums.to(result.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=SIZES)
def _turn(
    own, other, other_value, own_value, kept, state, mass, total, inner, result, heads, padded, width,
    own_count, own_shift, other_count, other_shift, chunks, skipped, states,
    REVERSE: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of a chunk of queries, phi'(q) (S dO - z dO·O) / total; or, reversed, of a chunk of keys.

    `own_value` is dO for queries and V for keys, `other_value` is what stands on the other side.
    """
    program = tl.program_id(0)
    row, chunk = (program // chunks).to(tl.int64), program % chunks + skipped
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    own_at, other_at = position - own_shift, position - other_shift
    column, down = tl.arange(0, WIDTH), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = (own_at >= 0) & (own_at < own_count)
    side = tile(own_value, row, own_at, own_count, column, width)
    place = (row * states + (chunk if CAUSAL else 0)) * width
    inside = (column < width)[:, None] & (down < width)[None, :]
    # the state transposed: (value width, feature block)
    known = tl.load(state + (place + down)[None, :] * width + column[:, None], mask=inside, other=0.0)
    slope = product(side, known, DOT, PRECISION)
    masses = tl.load(mass + place + down, mask=down < width, other=0.0)
    if REVERSE:
        slope += masses[None, :]
    else:
        own_inner = tl.load(inner + row * own_count + own_at, mask=exists, other=0.0)
        slope -= own_inner[:, None] * masses[None, :]
    if CAUSAL:
        others = tile(other_value, row, other_at, other_count, column, width)
        pair = product(side, tl.trans(others), DOT, PRECISION)
        if REVERSE:
            there = (other_at >= 0) & (other_at < other_count)
            scale = inverse(total, row, other_at, other_count)
            other_inner = tl.load(inner + row * other_count + other_at, mask=there, other=0.0)
            pair = tl.where(position[:, None] <= position[None, :], (pair - other_inner[None, :]) * scale[None, :], 0.0)
        else:
            there = real_rows(kept, row, heads, other_at, other_count, padded)
            pair = tl.where(position[:, None] >= position[None, :], pair - own_inner[:, None], 0.0)
        features = features_of(other, row, other_at, other_count, down, width, there, DOT)
        slope += product(pair, features, DOT, PRECISION)
    x = tile(own, row, own_at, own_count, down, width)
    # phi' of elu(x) + 1: 1 above zero, exp(x) below
    slope *= tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)))
    if REVERSE:
        slope = tl.where(real_rows(kept, row, heads, own_at, own_count, padded)[:, None], slope, 0.0)
    else:
        slope = slope * inverse(total, row, own_at, own_count)[:, None]
    target = result + (row * own_count + own_at)[:, None] * width + down[None, :]
    tl.store(target, slope.to(result.dtype.element_ty), mask=exists[:, None] & (down < width)[None, :])


def _pass(head_dim: int, dtype: torch.dtype, causal: bool) -> None:
    like = torch.empty(2, 8, 4096, head_dim, device="meta", dtype=dtype)
    query, key, value = (torch.empty_like(like, requires_grad=True) for _ in "qkv")
    valid = torch.empty(2, 4096, device="meta", dtype=torch.bool) if causal else None
    output = linear_attention(query, key, value, valid, causal)
    output.backward(torch.empty_like(output))


COMPILE_CASES = tuple(
    CompileCase(name=name, run=partial(_pass, head_dim, torch.bfloat16, causal))
    for name, head_dim, causal in (("causal, 64", 64, True), ("causal, 256", 256, True), ("all, 128", 128, False))
)
