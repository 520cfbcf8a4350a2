"""Dispatch: the code that a forward goes through, by the `impl` asked for, the device, the dtype and the size.

A variant with fused kernels calls `refusal` in `supports`, and `choose_implementation` at the start of `forward`.
"""

from __future__ import annotations

import sys
from functools import cache

import torch
from torch import Tensor

from ..contract import AttentionShape, Unsupported
from . import gpu as triton_launch
from .cpu import build as cpu_build

# what the kernels for CPU, which compute in float32, take without loss
_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
# scores of a forward; below, ReLA's eager operators cost no more, and no build is worth its wait: see NOTES.md
SMALL = 2**15
# queries; with fewer, as in decoding, a product is bound by reading the keys, and heads together read them faster
FEW = 16
# all fused forms of ReLA and the entmax family: they drop weights inside, by the mask of `ops/dropout`
DROPPING = frozenset({"cpp", "triton"})


def choose_implementation(
    impl: str,
    query: Tensor,
    *others: Tensor,
    dtype: torch.dtype | None = None,
    dropout: float = 0.0,
    dropping: frozenset[str] = frozenset(),
    bounds: bool = False,
    kernels: frozenset[str] = frozenset({"triton"}),
) -> str:
    """The implementation for these inputs, such as "eager" or "triton": `impl`, where that is not "auto".

    query: (batch, heads, queries, head_dim); `others`: the key, then what else must have its dtype. `dtype`: that of
    the kernels, where it is not that of the inputs. `dropout`: that of the attention weights which this forward
    applies. `dropping`: the forms of the variant that drop weights inside; with dropout auto takes one of them, or goes
    the eager way. `bounds`: whether the mask has bounds, which no kernel supports. `kernels`: the forms of the variant
    that auto may take, "cpp" on a CPU where a compiler has built it, "triton" on a GPU. Raises Unsupported where Triton
    is asked for and cannot run, any kernel with bounds, or with dropout a form that drops nothing.
    """
    device = query.device.type
    if bounds:
        if impl not in ("auto", "eager"):
            raise Unsupported(f"impl={impl}: kernels do not support bounds of a mask; use impl=eager, or impl=auto")
        return "eager"
    if impl == "auto":
        # a model that is compiled as a whole is fused by the compiler, and cannot look into our launches
        if torch.compiler.is_compiling() or {"cpu": "cpp", "cuda": "triton"}.get(device) not in kernels:
            return "eager"
        if device == "cpu":
            chosen = _on_cpu(query, others[0])
            return "eager" if _cannot_drop(chosen, dropout, dropping) else chosen
    # forced: `supports` has asked `refusal` whether it can be
    elif impl != "triton":
        if reason := _cannot_drop(impl, dropout, dropping):
            raise Unsupported(f"impl={impl}: {reason}; use impl=eager, or impl=auto")
        return impl
    # a variant may compute in another dtype than that of its inputs
    reason = triton_launch.reason(device, dtype or query.dtype, query.shape[-1])
    if reason is None and any(other.dtype != query.dtype for other in others):
        reason = "kernels take query, key and value of one dtype"
    if reason is None and any(other.shape[-1] != query.shape[-1] for other in others):
        widths = ", ".join(str(x.shape[-1]) for x in (query, *others))
        reason = f"kernels take query, key and value of one head_dim, not {widths}"
    reason = reason or _cannot_drop("triton", dropout, dropping)
    if reason is None:
        return "triton"
    if impl == "auto":
        return "eager"
    # inputs may differ from the shape that was asked about, and a forced path never falls back
    raise Unsupported(f"impl=triton: {reason}; use impl=eager, or impl=auto")


def refusal(
    impl: str,
    shape: AttentionShape,
    dtype: torch.dtype | None = None,
    *,
    drops: bool = True,
    dropping: frozenset[str] = frozenset(),
    alpha: float = 1.5,
) -> str | None:
    """None, or why a forced `impl` cannot do `shape`. Asked about cpp, it builds the kernels.

    `dtype`: that of the kernels, where it is not that of the shape. `drops`: whether the variant drops weights at all;
    `dropping`: the forms of it that do so inside. `alpha`: of a variant of the entmax family.
    """
    if impl in ("auto", "eager"):
        return None
    device, dtype = torch.device(shape.device).type, dtype or getattr(torch, shape.dtype)
    reason: str | None = None
    # asked first, since it needs no device and no build
    if drops and (cannot := _cannot_drop(impl, shape.dropout, dropping)):
        reason = f"{cannot}; impl=auto trains through eager code"
    elif not (lowest := triton_launch.LOWEST_ALPHA if impl == "triton" else 1.0) <= alpha <= 2.0:
        reason = f"it does alpha from {lowest:g} to 2, not {alpha:g}"
    elif impl == "triton":
        reason = triton_launch.reason(device, dtype, shape.head_dim)
    elif impl == "flex":
        reason = None if device == "cuda" else "FlexAttention needs a CUDA device: it has no backward pass on a CPU"
    elif device != "cpu":
        reason = f"it runs on the CPU, not on {device}"
    elif dtype not in _SINGLE:
        reason = f"it computes in float32, not in {shape.dtype}"
    elif impl == "cpp":
        reason = cpu_build.failure()
    return f"impl={impl}: {reason}" if reason else None


def _cannot_drop(impl: str, dropout: float, dropping: frozenset[str]) -> str | None:
    """None, or why this form cannot train with dropout."""
    if not dropout or impl == "eager" or impl in dropping:
        return None
    return f"its kernels drop no weights, and the dropout is {dropout}"


def _on_cpu(query: Tensor, key: Tensor) -> str:
    small = query.shape[2] < FEW or query.shape[:3].numel() * key.shape[2] < SMALL
    if small or query.dtype not in _SINGLE:
        return "eager"
    return "cpp" if _has_kernels() else "eager"


@cache
def _has_kernels() -> bool:
    reason = cpu_build.failure()
    if reason:
        said = f"attnbench: no C++ attention kernels, so sparse maps run eager and hold all scores: {reason}"
        print(said, file=sys.stderr, flush=True)
    return reason is None
