"""A CUDA device's attention kernels where there is none: tensors say they lie there, PyTorch's backends behave so.

As read in PyTorch's source (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and cudnn/MHA.cpp) or measured on an
H100 with torch 2.11: which backend takes which inputs, the order in which PyTorch asks them, and its words where none
does; rounding to half precision inside; sums of another order at each run; and a graph of cuDNN's backward pass that is
kept by the layout of query, key and value alone, so that it reads every later gradient of the output as the first lay.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

ORDER = ("cudnn", "flash", "efficient", "math")
ENABLED = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}
NUMBERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
           "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
CUDA = torch.device("cuda", 0)


def refusal(backend: str, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, dropout: float) -> str:
    """Why the backend does not take the inputs; empty where it does."""
    widths, half = (query.shape[-1], value.shape[-1]), query.dtype in HALVES
    if backend in ("flash", "cudnn") and not half:
        return f"Expected query, key and value to all be of dtype: {{Half, BFloat16}}. Got Query dtype: {query.dtype}"
    if backend == "flash" and (allowed is not None or max(widths) > 256):
        return "Flash Attention does not support non-null attn_mask, or a head_dim above 256."
    if backend == "cudnn":
        if max(widths) > 128 or any(width % 8 for width in widths):
            return "head_dim should be a multiple of 8" if any(w % 8 for w in widths) else "head_dim at most 128"
        if key.shape[2] == 1:
            return "cudnn SDPA does not support key/value sequence length 1."
        if (16 * dropout) % 1:
            return "cuDNN dropout probability resolution is limited to 1/16."
    if backend == "efficient":
        if query.dtype == torch.float64:
            return f"Expected query, key and value to all be of dtype: {{Half, Float, BFloat16}}. Got {query.dtype}"
        if any(width % (8 if half else 4) for width in widths):
            return "Mem efficient attention requires last dimension of inputs to be divisible by 8."
    return ""


class Kernel(torch.autograd.Function):
    """One backend, forward and backward; sums in float32, in an order of its own, weights rounded as inputs are."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, more: tuple[Any, ...]) -> Tensor:
        _, backend, allowed, dropout, causal, scale = more
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        order = torch.randperm(key.shape[2], generator=torch.Generator().manual_seed(len(backend)))
        scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
        if causal:
            past = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
            scores = scores.masked_fill(~past, -torch.inf)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        weights = scores.softmax(-1)
        kept = torch.rand(weights.shape) >= dropout if dropout else None
        used = weights if kept is None else weights * kept / (1 - dropout)
        # what is multiplied by the values is rounded to their dtype, as tensor cores take it
        output = (used.to(query.dtype).to(wide)[..., order] @ value.to(wide)[:, :, order]).to(query.dtype)
        # laid out as the query is
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
        ctx.save_for_backward(query, key, value, weights)
        ctx.more, ctx.kept = more, kept
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Any, ...]:
        kernels, backend, _, dropout, causal, scale = ctx.more
        query, key, value, weights = ctx.saved_tensors
        wide = weights.dtype
        if backend == "cudnn":
            if arriving.stride(-1) != 1:
                arriving = arriving.transpose(1, 2).contiguous().transpose(1, 2)
            kept_by = (*(x for each in (query, key, value) for x in (*each.shape, *each.stride())), causal, query.dtype)
            first = kernels.layouts.setdefault(kept_by, arriving.stride())
            arriving = arriving.as_strided(arriving.shape, first)
        gradient = arriving.to(wide)
        used = weights if ctx.kept is None else weights * ctx.kept / (1 - dropout)
        of_weights = gradient @ value.to(wide).transpose(-2, -1)
        if ctx.kept is not None:
            of_weights = of_weights * ctx.kept / (1 - dropout)
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        rounded = of_scores.to(query.dtype).to(wide)
        found = [
            rounded @ key.to(wide) * scale,
            rounded.transpose(-2, -1) @ query.to(wide) * scale,
            used.to(query.dtype).to(wide).transpose(-2, -1) @ gradient,
        ]
        if backend in kernels.wrong:
            found[1] = 1.2 * found[1]
        if backend == "efficient":
            # atomic additions: a rounding of the sums, another one at each run
            epsilon = torch.finfo(wide).eps
            found = [x * (1 + epsilon * (2 * torch.rand(x.shape, generator=kernels.noise) - 1)) for x in found]
        return (*(x.to(query.dtype) for x in found), None)


class FakeKernels(TorchFunctionMode):
    """Inside it every tensor says that it lies on `cuda:0`, and `scaled_dot_product_attention` is that of a GPU.

    `wrong`: backends whose gradient of the key is off by a fifth. `switches`: whether the next backend runs where one
    or two inputs alone want a gradient. `ran`: the backends that ran.
    """

    def __init__(self, wrong: tuple[str, ...] = (), switches: bool = False) -> None:
        super().__init__()
        self.wrong, self.switches, self.ran = wrong, switches, set[str]()
        self.layouts: dict[Any, tuple[int, ...]] = {}
        self.noise = torch.Generator().manual_seed(1)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.device.__get__:
            return CUDA
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if func is torch._fused_sdp_choice:
            return NUMBERS[self.choice(*args, **kwargs)].value
        if func is torch.device:
            return func(*args, **kwargs)
        return func(*map(_here, args), **{name: _here(value) for name, value in kwargs.items()})

    def choice(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
               dropout_p: float = 0.0, is_causal: bool = False, **_: Any) -> str:  # fmt: skip
        """The backend that PyTorch takes; raises what it raises where it has none."""
        reasons = {
            backend: refusal(backend, query, key, value, attn_mask, dropout_p)
            if ENABLED[backend]()
            else f"{backend} attention has been runtime disabled."
            for backend in ORDER
        }
        found = [backend for backend in ORDER if not reasons[backend]]
        if not found:
            for backend in ("efficient", "flash", "cudnn"):
                for text in (f"{backend} attention kernel not used because:", reasons[backend]):
                    warnings.warn(f"{text} (Triggered internally at /pytorch/aten/x.cpp:1.)", UserWarning, stacklevel=2)
            raise RuntimeError("No available kernel. Aborting execution.")
        wanted = sum(x.requires_grad for x in (query, key, value)) if torch.is_grad_enabled() else 3
        return found[1] if self.switches and wanted in (1, 2) and len(found) > 1 else found[0]

    def attention(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                  dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                  enable_gqa: bool = False) -> Tensor:  # fmt: skip
        if 0 in query.shape or query.dim() != 4:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        backend = self.choice(query, key, value, attn_mask, dropout_p, is_causal)
        self.ran.add(backend)
        more = (self, backend, attn_mask, dropout_p, is_causal, query.shape[-1] ** -0.5 if scale is None else scale)
        output: Tensor = Kernel.apply(query, key, value, more)
        return output


def _here(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value
