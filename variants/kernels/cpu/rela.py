"""ReLA in C++: weighted sums of values with rectified scores as weights, and nothing of queries × keys in memory."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ...contract import Mask
from ...ops.dropout import WeightDropout
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from ...ops.inputs import check_inputs
from .packing import Packing, common_width, flat, unflat


def rela_attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask, drop: WeightDropout | None = None) -> Tensor:
    """Weighted sums of values before the norm, (batch, heads, queries, head_dim), float32.

    drop: dropout of the weights; its mask is computed again in the backward, and never stored.
    Computed in float32 whatever the dtype of the inputs; values may have another width than keys, and the sums have
    that of the values. Differentiable once. Needs the kernels loaded: `build.failure()` is None. Raises SelectionError
    for shapes that do not fit.
    """
    check_inputs(query, key, value, mask.valid, grouped=True)
    return cast(Tensor, _Sums.apply(query, key, value, mask, drop))  # type: ignore[no-untyped-call]


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Mask, drop: WeightDropout | None) -> Tensor:
        ctx.packing = packing = Packing.of(mask, query.shape[0], query.shape[2], key.shape[2])
        ctx.drop, ctx.scale = drop, query.shape[-1] ** -0.5
        # the scores are computed again in the backward: keeping them would cost queries × keys
        ctx.save_for_backward(query, key, value)
        width = common_width(key, value)
        packed = flat(query, columns=width), packing.pack(key, columns=width), packing.pack(value, columns=width)
        sums = torch.ops.attnbench_cpu.rela_forward(*packed, packing.limits, ctx.scale, *packing.drop_arguments(drop))
        return unflat(sums, query, value.shape[-1], torch.float32)

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        packing: Packing = ctx.packing
        width = common_width(key, value)
        packed = flat(query, columns=width), packing.pack(key, columns=width), packing.pack(value, columns=width)
        to_query, to_key, to_value = torch.ops.attnbench_cpu.rela_backward(
            *(flat(grad_output, columns=width), *packed, packing.limits, ctx.scale),
            *packing.drop_arguments(ctx.drop),
        )
        gradient = unflat(to_query, query, query.shape[-1], query.dtype)
        return gradient, packing.unpack(to_key, key), packing.unpack(to_value, value), None, None
