"""Linear recurrences with a matrix as state in C++, both passes chunk by chunk: one kernel for a family."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ...contract import SelectionError
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from ...ops.recurrences import check_terms

# floats of the widest vector
_VECTOR = 16


def recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`recurrence` of `ops/recurrences`, in float32: the outputs and the last state.

    Differentiable once, in all six arguments. It keeps the state before every 64th step for the backward, which
    computes the others again. Needs the kernels loaded: `build.failure()` is None. Raises SelectionError for shapes
    that do not fit.
    """
    check_terms(query, key, value, log_decay, erase, state)
    if query.dtype != torch.float32:
        raise SelectionError(f"expected float32, got {query.dtype}; `recurrence` of ops/recurrences takes float64 too")
    # of any strides, but for the columns
    of_key = -query.shape[-1] % _VECTOR
    of_value = -value.shape[-1] % _VECTOR
    if log_decay is not None and log_decay.dim() == 4:
        log_decay = _widened(log_decay, of_key)
    given = (
        _widened(query, of_key),
        _widened(key, of_key),
        _widened(value, of_value),
        log_decay,
        None if erase is None else _widened(erase, of_key),
        None if state is None else F.pad(state, (0, of_value, 0, of_key)).contiguous(),
    )
    output, last = cast(tuple[Tensor, Tensor], _Recurrence.apply(*given))  # type: ignore[no-untyped-call]
    return output[..., : value.shape[-1]], last[..., : query.shape[-1], : value.shape[-1]]


def _widened(x: Tensor, columns: int) -> Tensor:
    """`x` with columns of zeros behind its own, all side by side."""
    x = F.pad(x, (0, columns)) if columns else x
    return x if x.stride(-1) == 1 else x.contiguous()


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        keep = any(ctx.needs_input_grad)
        output, last, states = torch.ops.attnbench_cpu.recurrence_forward(*given, keep)
        ctx.save_for_backward(*given[:5], states)
        return output, last

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        *given, states = ctx.saved_tensors
        query, value = given[0], given[2]
        if grad_output is None:
            grad_output = query.new_zeros(*query.shape[:3], value.shape[-1])
        if grad_output.stride(-1) != 1:
            grad_output = grad_output.contiguous()
        grad_last = None if grad_last is None else grad_last.contiguous()
        found = torch.ops.attnbench_cpu.recurrence_backward(grad_output, grad_last, *given, states)
        # the state is no longer needed, and its gradient has its shape
        shapes = [x if x is None else x.shape for x in given] + [found[5].shape]
        asked = zip(found, shapes, ctx.needs_input_grad, strict=True)
        return tuple(x.view(shape) if needed else None for x, shape, needed in asked)
