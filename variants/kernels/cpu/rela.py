"""ReLA in C++: weighted sums of values with rectified scores as weights, and nothing of queries × keys in memory."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...contract import Mask
from .packing import Packing, flat, unflat


def rela_attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Weighted sums of values before the norm, (batch, heads, queries, head_dim), float32.

    Computed in float32 whatever the dtype of the inputs. Needs the kernels loaded: `build.failure()` is None.
    """
    return cast(Tensor, _Sums.apply(query, key, value, mask))  # type: ignore[no-untyped-call]


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        ctx.packing = packing = Packing.of(mask, query.shape[0], query.shape[2], key.shape[2])
        ctx.scale = query.shape[-1] ** -0.5
        # the scores are computed again in the backward: keeping them would cost queries × keys
        ctx.save_for_backward(query, key, value)
        packed = flat(query), packing.pack(key), packing.pack(value)
        return unflat(torch.ops.attnbench_cpu.rela_forward(*packed, packing.limits, ctx.scale), query.float())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        packing: Packing = ctx.packing
        to_query, to_key, to_value = torch.ops.attnbench_cpu.rela_backward(
            flat(grad_output), flat(query), packing.pack(key), packing.pack(value), packing.limits, ctx.scale
        )
        return unflat(to_query, query), packing.unpack(to_key, key), packing.unpack(to_value, value), None
