"""Choice: which code of a fused variant runs, by device, dtype, size and what is installed."""

from __future__ import annotations

import sys
from functools import cache

import torch
from torch import Tensor

from ...contract import AttentionShape
from ..triton import launch as triton_launch
from . import build as cpu_build

# what is computed in float32 without loss
_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
# scores of a forward; below, ReLA's eager operators cost no more, and no build is worth its wait: see NOTES.md
SMALL = 2**15
# queries; with fewer, as in decoding, a product is bound by reading the keys, and heads together read them faster
FEW = 16


def chosen(impl: str, query: Tensor, key: Tensor, *, dropout: bool) -> str:
    """The implementation for these inputs: `impl` where it is forced. `dropout`: attention dropout is active."""
    if impl != "auto":
        return impl
    # a model that is compiled as a whole is fused by the compiler
    if dropout or query.dtype not in _SINGLE or torch.compiler.is_compiling():
        return "eager"
    if query.device.type == "cuda":
        return "eager" if triton_launch.reason("cuda", query.dtype, query.shape[-1]) else "triton"
    small = query.shape[2] < FEW or query.shape[:3].numel() * key.shape[2] < SMALL
    if query.device.type != "cpu" or small:
        return "eager"
    return "cpp" if _has_kernels() else "blocked"


def refusal(impl: str, shape: AttentionShape, largest_alpha: float = 2.0) -> str | None:
    """Why a forced `impl` cannot do `shape`, or None. Asked about cpp, it builds the kernels."""
    if impl in ("auto", "eager"):
        return None
    dtype: torch.dtype = getattr(torch, shape.dtype)
    device = torch.device(shape.device).type
    if impl == "triton":
        reason = triton_launch.reason(device, dtype, shape.head_dim)
    elif device != "cpu":
        reason = f"it runs on the CPU, not on {device}"
    elif dtype not in _SINGLE and impl != "blocked":
        reason = f"it computes in float32, not in {shape.dtype}"
    else:
        reason = _lacks(impl)
    if shape.dropout:
        reason = "it leaves attention dropout out; with impl=auto training goes through eager while that is active"
    elif largest_alpha > 2.0:
        reason = f"it does alpha from 1 to 2, not {largest_alpha:g}"
    return f"impl={impl}: {reason}" if reason else None


def _lacks(impl: str) -> str | None:
    if impl == "cpp":
        return cpu_build.failure()
    if impl == "compiled" and cpu_build.compiler() is None:
        return "torch.compile found no C++ compiler; install g++, or name one in CXX"
    return None


@cache
def _has_kernels() -> bool:
    reason = cpu_build.failure()
    if reason:
        print(f"attnbench: no C++ attention kernels, plain PyTorch instead: {reason}", file=sys.stderr, flush=True)
    return reason is None
