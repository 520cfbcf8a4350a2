"""Which code a forward goes through: the `impl` asked for, the device, and what the kernels can do."""

from __future__ import annotations

import torch
from torch import Tensor

from ...bench.core.errors import Unsupported
from ..contract import AttentionShape
from .triton import launch as triton_launch


def refusal(impl: str, shape: AttentionShape, dtype: torch.dtype | None = None, *, drops: bool = True) -> str | None:
    """None, or why `impl` cannot do `shape`, in `dtype` where the kernels are not in that of the shape.

    `drops`: whether the variant drops weights, which no kernel does.
    """
    if impl not in ("triton", "flex"):
        return None
    device = torch.device(shape.device).type
    reason: str | None
    if impl == "flex":
        reason = None if device == "cuda" else "FlexAttention needs a CUDA device: it has no backward pass on a CPU"
    else:
        reason = triton_launch.reason(device, dtype or getattr(torch, shape.dtype), shape.head_dim)
    if reason is None and drops and shape.dropout > 0.0:
        reason = f"kernels drop no weights, and the dropout is {shape.dropout}"
    return None if reason is None else f"impl={impl}: {reason}"


def path(impl: str, query: Tensor, *others: Tensor, dtype: torch.dtype | None = None, dropout: float = 0.0) -> str:
    """What a forward of these tensors runs: "eager", "triton" or "flex"; auto is Triton where a GPU can run it.

    `dropout` is the one that this forward applies. Raises Unsupported where Triton is asked for and cannot run.
    """
    if impl in ("eager", "flex") or (impl == "auto" and query.device.type != "cuda"):
        return "eager" if impl == "auto" else impl
    reason = triton_launch.reason(query.device.type, dtype or query.dtype, query.shape[-1])
    if reason is None and any(other.dtype != query.dtype for other in others):
        reason = "kernels take query, key and value of one dtype"
    if reason is None and dropout > 0.0:
        reason = f"kernels drop no weights, and the dropout is {dropout}"
    if reason is None:
        return "triton"
    if impl == "auto":
        return "eager"
    raise Unsupported(f"impl=triton: {reason}; use impl=eager, or impl=auto")
