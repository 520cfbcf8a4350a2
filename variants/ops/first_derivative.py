"""Autograd functions that are differentiable once: a second derivative raises, and is never left out unsaid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..contract import Unsupported

Gradients = tuple[Tensor | None, ...]
Backward = Callable[..., Gradients]

THROUGH_EAGER = "the fused kernels have a first derivative only; for a second one use impl=eager"
OF_ADDITIVE = "additive attention has a first derivative only; for a second one use softmax"
OF_SIMPLEX = "sparsemax and entmax have a first derivative only; for a second one use softmax"


def first_derivative_only(reason: str) -> Callable[[Backward], Backward]:
    """Decorator for the `backward` of an autograd function: whoever differentiates its gradients gets Unsupported.

    `reason` is the message. The function must save its inputs, not copies of them, since the gradients depend on those
    saved tensors that have a gradient themselves.
    """
    # torch's own once_differentiable lets gradients pass as constants where the one that comes in is a constant, as in
    # a gradient penalty or a product with the Hessian

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def once(ctx: Any, *grad_outputs: Tensor) -> Gradients:
            with torch.no_grad():
                gradients = backward(ctx, *grad_outputs)
            if not torch.is_grad_enabled():
                return gradients
            sources = [x for x in (*ctx.saved_tensors, *grad_outputs) if x is not None and x.requires_grad]
            return tuple(None if g is None else _Once.apply(reason, g, *sources) for g in gradients)  # type: ignore[no-untyped-call]

        return once

    return decorate


class _Once(torch.autograd.Function):
    """A gradient, as it is, that depends on the sources and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, reason: str, gradient: Tensor, *sources: Tensor) -> Tensor:
        ctx.reason = reason
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise Unsupported(ctx.reason)
