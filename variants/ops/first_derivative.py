"""Autograd functions that are differentiable once: a second derivative raises, and is never left out unsaid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from ..contract import Unsupported

Gradients = tuple[Tensor | None, ...]
Backward = Callable[..., Gradients]

THROUGH_EAGER = "the fused kernels have a first derivative only; for a second one use impl=eager"
OF_ADDITIVE = "additive attention has a first derivative only; for a second one use softmax"
OF_SIMPLEX = "sparsemax and entmax have a first derivative only; for a second one use softmax"


def first_derivative_only(reason: str | Callable[[Any], str]) -> Callable[[Backward], Backward]:
    """Decorator for the `backward` of an autograd function: whoever differentiates its gradients gets Unsupported.

    `reason`: its message, or a function that makes it of the context.
    The function must save its inputs, not copies of them, since the gradients depend on those saved tensors that have
    a gradient themselves.
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
            said = reason if isinstance(reason, str) else reason(ctx)
            return tuple(None if g is None else _Once.apply(said, g, *sources) for g in gradients)  # type: ignore[no-untyped-call]

        return once

    return decorate


def differentiable_once(
    reason: str, function: Callable[..., Tensor], *tensors: Tensor, around: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """`function(*tensors)`; whoever differentiates its gradients gets Unsupported with `reason`.

    For code whose backward is not written here, such as a compiled graph. `around`: what its backward runs in.
    """
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return function(*tensors)
    return cast(Tensor, _Enclosed.apply(reason, function, around, *tensors))  # type: ignore[no-untyped-call]


class _Enclosed(torch.autograd.Function):
    """A function and its graph, as one node of the graph outside."""

    @staticmethod
    def forward(
        ctx: Any, reason: str, function: Callable[..., Tensor], around: Callable[..., Any], *tensors: Tensor
    ) -> Tensor:
        leaves = [
            x.detach().requires_grad_(wanted) for x, wanted in zip(tensors, ctx.needs_input_grad[3:], strict=True)
        ]
        with torch.enable_grad():
            output = function(*leaves)
        ctx.reason, ctx.around, ctx.enclosed = reason, around, (leaves, output)
        ctx.save_for_backward(*tensors)
        return output.detach()

    @staticmethod
    @first_derivative_only(lambda ctx: ctx.reason)
    def backward(ctx: Any, grad_output: Tensor) -> Gradients:
        leaves, output = ctx.enclosed
        wanted = [x for x in leaves if x.requires_grad]
        with ctx.around():
            # retained, since the graph outside may be; it goes with this node
            found = iter(torch.autograd.grad(output, wanted, grad_output, retain_graph=True))
        return None, None, None, *(next(found) if x.requires_grad else None for x in leaves)


class _Once(torch.autograd.Function):
    """A gradient, as it is, that depends on the sources and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, reason: str, gradient: Tensor, *sources: Tensor) -> Tensor:
        ctx.reason = reason
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise Unsupported(ctx.reason)
