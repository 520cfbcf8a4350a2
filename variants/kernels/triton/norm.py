"""Gated RMS norm over concatenated heads as one small kernel each way, for the sums that rectified attention leaves."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, Literal, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from .launch import SIZES, CompileCase, launch
from .tiles import own_tile, strides

# queries whose part of the parameters' gradients is added up by one program, always in the same order
_ROWS_PER_PROGRAM = 32


def gated_rms_norm(
    sums: Tensor,
    scale: Tensor,
    gate: Tensor | None,
    epsilon: float,
    norm: Literal["concat", "head"] = "concat",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """scale * x / sqrt(mean(x^2) + epsilon) * sigmoid(gate * x), x = `sums`, (batch, heads, queries, head_dim).

    scale and gate are (heads * head_dim,), gate None = no gate. The mean is over all heads of a query, or over each
    head where norm is "head". Computed in float32; the output has the shape of `sums` and `dtype`, by default that of
    `sums`. Differentiable once in sums, scale and gate; the same bits at every run.
    Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units, eq. 7-8.
    """
    # here, where autograd sees it: the function saves its inputs
    sums, scale = sums if sums.stride(-1) == 1 else sums.contiguous(), scale.contiguous()
    gate = None if gate is None else gate.contiguous()
    normed = _TritonGatedRMSNorm.apply(sums, scale, gate, epsilon, norm == "concat", dtype or sums.dtype)
    return cast(Tensor, normed)


@triton.jit
def _own_rows(
    scale_ptr, gate_ptr, queries, heads, head_dim, members, GATED: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The rows of this program: some queries of one group of heads, whose columns lie side by side.

    Returns the number of the program among all; its batch; the head and the dimension of each column, the columns, and
    whether each is inside; scale and gate of each; the first query, and how many there are.
    """
    parts = tl.cdiv(queries, ROWS)
    part, group = own_tile(parts)
    groups = heads // members
    batch, first_head = group // groups, (group % groups) * members
    columns = tl.arange(0, COLUMNS)
    head, dim = columns // head_dim + first_head, columns % head_dim
    inside = columns < members * head_dim
    parameter = first_head * head_dim + columns
    scale = tl.load(scale_ptr + parameter, mask=inside, other=0.0).to(tl.float32)
    gate = scale
    if GATED:
        gate = tl.load(gate_ptr + parameter, mask=inside, other=0.0).to(tl.float32)
    first = part * ROWS
    # offsets of whole tensors do not fit 32 bits
    return (
        group * parts + part, batch.to(tl.int64), head.to(tl.int64), dim, columns, inside, scale, gate,
        first.to(tl.int64), tl.minimum(first + ROWS, queries) - first,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _norm_forward(
    x_ptr, scale_ptr, gate_ptr, y_ptr,
    queries, heads, head_dim, members,
    x_batch, x_head, x_query, y_batch, y_head, y_query, epsilon,
    GATED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    _, batch, head, dim, _, inside, scale, gate, first, rows = _own_rows(
        scale_ptr, gate_ptr, queries, heads, head_dim, members, GATED, COLUMNS, ROWS
    )
    width = members * head_dim
    x_at = x_ptr + batch * x_batch + head * x_head + dim + first * x_query
    y_at = y_ptr + batch * y_batch + head * y_head + dim + first * y_query
    for _ in range(rows):
        x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
        y = x * scale * (1.0 / tl.sqrt(tl.sum(x * x) / width + epsilon))
        if GATED:
            y *= tl.sigmoid(gate * x)
        tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=inside)
        x_at += x_query
        y_at += y_query


@triton.jit(do_not_specialize=SIZES)
def _norm_backward(
    x_ptr, scale_ptr, gate_ptr, dy_ptr, dx_ptr, dscale_ptr, dgate_ptr,
    queries, heads, head_dim, members,
    x_batch, x_head, x_query, dy_batch, dy_head, dy_query, dx_batch, dx_head, dx_query, epsilon,
    GATED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    own, batch, head, dim, columns, inside, scale, gate, first, rows = _own_rows(
        scale_ptr, gate_ptr, queries, heads, head_dim, members, GATED, COLUMNS, ROWS
    )
    width = members * head_dim
    x_at = x_ptr + batch * x_batch + head * x_head + dim + first * x_query
    dy_at = dy_ptr + batch * dy_batch + head * dy_head + dim + first * dy_query
    dx_at = dx_ptr + batch * dx_batch + head * dx_head + dim + first * dx_query
    dscale = tl.zeros([COLUMNS], tl.float32)
    dgate = tl.zeros([COLUMNS], tl.float32)
    for _ in range(rows):
        x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_at, mask=inside, other=0.0).to(tl.float32)
        inverse = 1.0 / tl.sqrt(tl.sum(x * x) / width + epsilon)
        factor = scale
        slope = scale
        if GATED:
            open_ = tl.sigmoid(gate * x)
            closing = open_ * (1.0 - open_)
            factor = scale * open_
            slope = scale * (open_ + x * gate * closing)
            dscale += dy * x * inverse * open_
            dgate += dy * x * inverse * scale * x * closing
        else:
            dscale += dy * x * inverse
        # the part of the gradient that goes through the mean of the squares: one number for the row
        through_norm = tl.sum(x * factor * dy) * inverse * inverse / width
        dx = inverse * (dy * slope - x * through_norm)
        tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        x_at += x_query
        dy_at += dy_query
        dx_at += dx_query
    tl.store(dscale_ptr + own * width + columns, dscale, mask=inside)
    if GATED:
        tl.store(dgate_ptr + own * width + columns, dgate, mask=inside)


class _TritonGatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sums: Tensor, scale: Tensor, gate: Tensor | None, epsilon: float, concat: bool, dtype: torch.dtype
    ) -> Tensor:
        output = torch.empty_like(sums, dtype=dtype)
        ctx.save_for_backward(sums, scale, gate)
        ctx.epsilon, ctx.group = epsilon, sums.shape[1] if concat else 1
        parts, groups, columns, warps = _plan(sums, ctx.group)
        if output.numel():
            launch(
                _norm_forward, (parts * groups,), sums, scale, gate, output, *_sizes(sums, ctx.group),
                *strides(sums, output), epsilon,
                warps=warps, GATED=gate is not None, COLUMNS=columns, ROWS=_ROWS_PER_PROGRAM,
            )  # fmt: skip
        return output

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        sums, scale, gate = ctx.saved_tensors
        grad_output = grad_output if grad_output.stride(-1) == 1 else grad_output.contiguous()
        downstream = torch.empty_like(sums)
        parts, groups, columns, warps = _plan(sums, ctx.group)
        # a row of partial sums for each program, added up by torch in one order: atomics would differ from run to run
        shape = (sums.shape[0], sums.shape[1] // ctx.group, parts, ctx.group * sums.shape[3])
        to_scale = sums.new_zeros(shape, dtype=torch.float32)
        to_gate = None if gate is None else torch.zeros_like(to_scale)
        if downstream.numel():
            launch(
                _norm_backward, (parts * groups,), sums, scale, gate, grad_output, downstream, to_scale, to_gate,
                *_sizes(sums, ctx.group),
                *strides(sums, grad_output, downstream), ctx.epsilon,
                warps=warps, GATED=gate is not None, COLUMNS=columns, ROWS=_ROWS_PER_PROGRAM,
            )  # fmt: skip
        gate_gradient = None if to_gate is None else to_gate.sum((0, 2)).flatten().to(gate.dtype)
        return downstream, to_scale.sum((0, 2)).flatten().to(scale.dtype), gate_gradient, None, None, None


def _sizes(sums: Tensor, group: int) -> tuple[int, int, int, int]:
    _, heads, queries, head_dim = sums.shape
    return queries, heads, head_dim, group


def _plan(sums: Tensor, group: int) -> tuple[int, int, int, int]:
    """Parts of the queries, groups of heads, columns of a program (a power of two) and its warps."""
    batch, heads, queries, head_dim = sums.shape
    # a block of Triton is a power of two; the columns past the width are masked
    columns = triton.next_power_of_2(group * head_dim)
    return triton.cdiv(queries, _ROWS_PER_PROGRAM), batch * heads // group, columns, min(max(columns // 256, 1), 8)


def _pass(norm: Literal["concat", "head"], gated: bool) -> None:
    sums = torch.empty(2, 8, 4096, 64, device="meta", requires_grad=True)
    scale, gate = (torch.empty(512, device="meta", requires_grad=True) for _ in range(2))
    output = gated_rms_norm(sums, scale, gate if gated else None, 1e-8, norm, torch.bfloat16)
    output.backward(torch.empty_like(output))


COMPILE_CASES = (
    CompileCase(name="norm over all heads", run=lambda: _pass("concat", True)),
    CompileCase(name="norm of each head, no gate", run=lambda: _pass("head", False)),
)
