"""Sparsemax, entmax and top-k attention in C++: the support of each query is found, kept, and alone computed with."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ...contract import Mask
from ...ops.dropout import WeightDropout
from ...ops.first_derivative import OF_SIMPLEX, first_derivative_only
from ...ops.inputs import check_inputs
from .packing import Packing, flat, unflat

_SPARSEMAX, _ENTMAX15, _ENTMAX, _TOPK = 0, 1, 2, 3
# where alpha is 1 it stands for no excess: every term is then at its limit and none divides by zero
_SMALLEST_EXCESS = 1e-20


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    mask: Mask,
    drop: WeightDropout | None = None,
) -> Tensor:
    """Output (batch, heads, queries, head_dim), in the dtype of `value`; alpha: from 1 to 2, a number or (heads,).

    drop: dropout of the weights; its mask is computed again in the backward, and never stored.
    Computed in float32 whatever the dtype of the inputs; values may have another width than keys, and so has the
    output. Differentiable once, in alpha as well. Needs the kernels loaded: `build.failure()` is None. Raises
    SelectionError for shapes that do not fit.
    """
    check_inputs(query, key, value, mask.valid, grouped=True)
    kind = {2.0: _SPARSEMAX, 1.5: _ENTMAX15}.get(alpha, _ENTMAX) if isinstance(alpha, float) else _ENTMAX
    # the general map takes alpha of each head; the two special ones ignore it and have no logarithm
    each = alpha if isinstance(alpha, Tensor) else torch.full((query.shape[1],), alpha)
    return cast(Tensor, _Attention.apply(query, key, value, each, mask, kind, drop))  # type: ignore[no-untyped-call]


def topk_attention(
    query: Tensor, key: Tensor, value: Tensor, k: int, mask: Mask, drop: WeightDropout | None = None
) -> Tensor:
    """Softmax over the scores of a query that are not below its k-th largest; arguments as of `entmax_attention`."""
    check_inputs(query, key, value, mask.valid, grouped=True)
    # the operators take k in the place of alpha - 1
    each = torch.full((query.shape[1],), 1.0 + k)
    return cast(Tensor, _Attention.apply(query, key, value, each, mask, _TOPK, drop))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor,
        mask: Mask,
        kind: int,
        drop: WeightDropout | None,
    ) -> Tensor:
        # the order is kept, not the packed tensors: packing again is cheap, and the inputs are alive anyway
        ctx.packing = packing = Packing.of(mask, query.shape[0], query.shape[2], key.shape[2])
        ctx.kind, ctx.drop, ctx.scale = kind, drop, query.shape[-1] ** -0.5
        excess = (alpha.float() - 1.0).clamp(min=_SMALLEST_EXCESS)
        output, *found = torch.ops.attnbench_cpu.entmax_forward(
            *(*packing.pack(query, key, value), packing.limits, excess),
            *(kind, ctx.scale, _room(kind, key.shape[2], excess), any(ctx.needs_input_grad)),
            *packing.drop_arguments(drop),
        )
        # without a backward nothing of the supports is kept, and the kernel writes none
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(query, key, value, alpha, excess, *found)
        return unflat(output, query, value.shape[-1], value.dtype)

    @staticmethod
    @first_derivative_only(OF_SIMPLEX)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, excess, *found = ctx.saved_tensors
        packing: Packing = ctx.packing
        learns = ctx.needs_input_grad[3]
        to_query, to_key, to_value, by_row = torch.ops.attnbench_cpu.entmax_backward(
            *(flat(grad_output), *packing.pack(query, key, value), packing.limits, excess, *found),
            *(ctx.kind, ctx.scale, learns, *packing.drop_arguments(ctx.drop)),
        )
        # float64: a sum over all queries of terms of either sign
        to_alpha = by_row.double().sum(1).view(query.shape[:2]).sum(0).to(alpha.dtype) if learns else None
        of_query = unflat(to_query, query, query.shape[-1], query.dtype)
        return of_query, packing.unpack(to_key, key), packing.unpack(to_value, value), to_alpha, None, None, None


def _room(kind: int, keys: int, excess: Tensor) -> int:
    """Entries of a support that are kept for the backward, on average over a block; more are found again from scores.

    Standard normal scores have supports of 0.4 % at alpha 2 and 1.9 % at 1.5 among 1024 keys, and sink with more.
    """
    if kind == _TOPK:
        return min(128, int(excess[0]))
    return min(128, 8 + keys // 64 if kind == _SPARSEMAX else 16 + keys // 32)
