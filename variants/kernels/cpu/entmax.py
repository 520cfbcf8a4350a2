"""Sparsemax and entmax attention in C++: the support of each query is found, kept, and alone computed with."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...contract import Mask
from .packing import Packing, flat, unflat

_SPARSEMAX, _ENTMAX15, _ENTMAX = 0, 1, 2
# where alpha is 1 it stands for no excess: every term is then at its limit and none divides by zero
_SMALLEST_EXCESS = 1e-20


def entmax_attention(query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, mask: Mask) -> Tensor:
    """Output (batch, heads, queries, head_dim), in the dtype of `value`; alpha: from 1 to 2, a number or (heads,).

    Computed in float32 whatever the dtype of the inputs; differentiable once, in alpha as well. Needs the kernels
    loaded: `build.failure()` is None.
    """
    kind = {2.0: _SPARSEMAX, 1.5: _ENTMAX15}.get(alpha, _ENTMAX) if isinstance(alpha, float) else _ENTMAX
    # the general map takes alpha of each head; the two special ones ignore it and have no logarithm
    each = alpha if isinstance(alpha, Tensor) else torch.full((query.shape[1],), alpha)
    return cast(Tensor, _Attention.apply(query, key, value, each, mask, kind))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, mask: Mask, kind: int) -> Tensor:
        # the order is kept, not the packed tensors: packing again is cheap, and the inputs are alive anyway
        ctx.packing = packing = Packing.of(mask, query.shape[0], query.shape[2], key.shape[2])
        ctx.kind, ctx.scale = kind, query.shape[-1] ** -0.5
        excess = (alpha.float() - 1.0).clamp(min=_SMALLEST_EXCESS)
        output, *found = torch.ops.attnbench_cpu.entmax_forward(
            *(flat(query), packing.pack(key), packing.pack(value), packing.limits, excess),
            *(kind, ctx.scale, _room(kind, key.shape[2]), any(ctx.needs_input_grad)),
        )
        # without a backward nothing of the supports is kept, and the kernel writes none
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(query, key, value, alpha, excess, *found)
        return unflat(output, query.to(value.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, excess, *found = ctx.saved_tensors
        packing: Packing = ctx.packing
        learns = ctx.needs_input_grad[3]
        to_query, to_key, to_value, by_row = torch.ops.attnbench_cpu.entmax_backward(
            *(flat(grad_output), flat(query), packing.pack(key), packing.pack(value), packing.limits, excess, *found),
            *(ctx.kind, ctx.scale, learns),
        )
        # float64: a sum over all queries of terms of either sign
        to_alpha = by_row.double().sum(1).view(query.shape[:2]).sum(0).to(alpha.dtype) if learns else None
        gradients = unflat(to_query, query), packing.unpack(to_key, key), packing.unpack(to_value, value)
        return *gradients, to_alpha, None, None


def _room(kind: int, keys: int) -> int:
    """Entries of a support that are kept for the backward, on average over a block; more are found again from scores.

    Standard normal scores have supports of 0.4 % at alpha 2 and 1.9 % at 1.5 among 1024 keys, and sink with more.
    """
    return min(128, 8 + keys // 64 if kind == _SPARSEMAX else 16 + keys // 32)
