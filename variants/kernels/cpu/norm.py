"""Gated RMS norm over concatenated heads in C++, each way in one pass, for the sums that rectified attention leaves."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only


def gated_rms_norm(
    sums: Tensor,
    scale: Tensor,
    gate: Tensor | None,
    epsilon: float,
    norm: Literal["concat", "head"] = "concat",
) -> Tensor:
    """scale * x / sqrt(mean(x^2) + epsilon) * sigmoid(gate * x), x = `sums`, (batch, heads, queries, head_dim).

    scale and gate are (heads * head_dim,), gate None = no gate. The mean is over all heads of a query, or over each
    head where norm is "head". In float32. Differentiable once; the same bits at every run. Needs the kernels loaded:
    `build.failure()` is None.
    Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units, eq. 7-8.
    """
    group = sums.shape[1] if norm == "concat" else 1
    # here, where autograd sees it: the function saves its inputs
    s = scale.float().contiguous()
    # an empty tensor stands for no gate in the C++ operators
    g = s.new_empty(0) if gate is None else gate.float().contiguous()
    return cast(Tensor, _CppGatedRMSNorm.apply(sums.contiguous(), s, g, epsilon, group))  # type: ignore[no-untyped-call]


class _CppGatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, scale: Tensor, gate: Tensor, epsilon: float, group: int) -> Tensor:
        output: Tensor
        output, inverse = torch.ops.attnbench_cpu.gated_norm_forward(sums, scale, gate, group, epsilon)
        ctx.group = group
        # one over the root mean square of each row, a number a query, spares the backward a pass
        ctx.save_for_backward(sums, inverse, scale, gate)
        return output

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        to_sums, to_scale, to_gate = torch.ops.attnbench_cpu.gated_norm_backward(
            grad_output.contiguous(), *ctx.saved_tensors, ctx.group
        )
        return to_sums, to_scale, to_gate if ctx.needs_input_grad[2] else None, None, None
