"""Scaled dot-product softmax attention through PyTorch's fused kernels, and which of them runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..contract import AttentionShape, Mask, Unsupported

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Backends of a GPU by the names that `impl` takes and that Records show."""

REFUSALS = ("No available kernel", "No viable backend", "cuDNN Frontend error")
"""Parts of the errors by which PyTorch says that a backend does not take the inputs; the last as it builds a plan."""

_NAMES = {backend.value: name for name, backend in BACKENDS.items()}


def fused_softmax(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float = 0.0, backend: str = ""
) -> tuple[Tensor, str]:
    """softmax(Q K^T / sqrt(d)) V by `scaled_dot_product_attention`, zeros for queries that may see no key.

    query, key: (batch, heads, queries | keys, d); value: (batch, heads, keys, value_dim), keys and values of as many
    heads or fewer; dropout: of the weights; backend: one of BACKENDS, or empty for PyTorch's own choice. Returns
    (batch, heads, queries, value_dim), and what ran: on a GPU the backend, elsewhere "sdpa". Raises Unsupported where a
    backend that is asked for does not take the inputs.
    """
    queries, keys = query.shape[2], key.shape[2]
    # the kernel's own causal flag aligns at the first key, so it serves only where both lengths agree
    causal = mask.causal and mask.valid is None and mask.bounds is None
    fused_causal = causal and queries == keys
    # one query alone, as in decoding, is the last and sees all keys
    allowed = None if fused_causal or (causal and queries == 1) else mask.allowed(queries, keys, query.device)
    dead = None
    if allowed is not None:
        # what the kernel gives on a row without an allowed key depends on the backend, NaN on some
        dead = ~allowed.any(-1, keepdim=True)
        # such a row may see everything, and is set to zero below
        allowed = allowed | dead
    if backend == "flash" and allowed is not None:
        raise Unsupported("impl=flash: it takes no mask but the causal one of a square; use impl=efficient")
    with choice(query, backend):
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=dropout,
            is_causal=fused_causal,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        ran = backend or _chosen(query, key, value, allowed, dropout, fused_causal)
    if ran == "cudnn":
        keep_layout(output)
    return output if dead is None else output.masked_fill(dead, 0.0), ran


def keep_layout(output: Tensor) -> None:
    """Lays the gradient that arrives at an output of cuDNN out as the output is, whoever sends it.

    PyTorch keeps a graph of cuDNN's backward pass by the layout of query, key and value, and not by that of this
    gradient (aten/src/ATen/native/cudnn/MHA.cpp, `MHACacheKeyWrapper`). A later one that lies otherwise in memory, such
    as a contiguous one after that of a model, would be read as the first lay: gradients are then wrong altogether.
    """
    if not output.requires_grad or torch.compiler.is_compiling():
        return
    strides = output.stride()

    def laid_out(gradient: Tensor) -> Tensor:
        if gradient.stride() == strides:
            return gradient
        return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)

    output.register_hook(laid_out)  # type: ignore[no-untyped-call]


def choice(query: Tensor, backend: str = "") -> AbstractContextManager[None]:
    """Allow the backend of that name alone inside, or PyTorch's own choice: for a single query without cuDNN's.

    That builds a plan for each new shape, in 20 to 40 ms on an H100 (docs/gpu.md): in decoding each step has a new
    number of keys.
    """
    if torch.compiler.is_compiling():
        # what is traced runs later, and Dynamo knows PyTorch's own context
        return sdpa_kernel(BACKENDS[backend]) if backend else nullcontext()
    if backend:
        return _asked(backend)
    if query.shape[-2] != 1 or query.device.type != "cuda":
        return nullcontext()
    asked: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return _without_cudnn() if asked else nullcontext()


@contextmanager
def _without_cudnn() -> Iterator[None]:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


@contextmanager
def _asked(backend: str) -> Iterator[None]:
    """Allow that backend alone; raises Unsupported where it refuses the inputs, with PyTorch's reasons."""
    try:
        with warnings.catch_warnings(record=True) as said, sdpa_kernel(BACKENDS[backend]):
            warnings.simplefilter("always")
            yield
    except RuntimeError as error:
        # any other error is one
        if not any(words in str(error) for words in REFUSALS):
            raise
        reasons = [str(each.message).partition(" (Triggered")[0] for each in said]
        # it explains all backends, the others as switched off; who was switched off tells nobody why
        why = [text for text in reasons if "not used because" not in text and "runtime disabled" not in text]
        # a frontend that builds no plan says why itself
        why = why or [str(error).partition("\n")[0]]
        raise Unsupported(f"impl={backend}: PyTorch has no such kernel for these inputs: {' '.join(why)}") from error
    for each in said:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def backend_refusal(backend: str, shape: AttentionShape) -> str | None:
    """None, or why a backend that is asked for by name cannot do `shape`; what only the kernel knows comes later."""
    if not shape.device.startswith("cuda"):
        return f"impl={backend}: it names a kernel of CUDA devices, and this is {shape.device}; use impl=sdpa"
    if backend == "flash" and shape.padding:
        return "impl=flash: it takes no padding mask; use impl=efficient, or inputs without padding"
    if backend in ("flash", "cudnn") and shape.dtype not in ("float16", "bfloat16"):
        return f"impl={backend}: it takes float16 and bfloat16, not {shape.dtype}"
    return None


def _chosen(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, dropout: float, causal: bool) -> str:
    """The backend that PyTorch takes for these inputs, asked as it asks itself."""
    if query.device.type != "cuda" or torch.compiler.is_compiling():
        return "sdpa"
    choice: int = torch._fused_sdp_choice(
        query, key, value, allowed, dropout, causal, enable_gqa=key.shape[1] != query.shape[1]
    )
    return _NAMES.get(choice, "sdpa")
