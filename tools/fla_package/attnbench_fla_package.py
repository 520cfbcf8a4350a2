"""Kernels of flash-linear-attention (the package `fla`) as their users call them: baselines of time beside ours.

As in fla's own benchmark the kernel alone is timed: gates are parameters of heads, or of heads and dimensions, written
out for each token, and not projections of the hidden state. Its layout is tokens before heads; the copies that inputs
with heads before tokens need are part of the time, and a model whose projections are read as views needs none.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, Unsupported, Variant

CHUNK = 64
"""Tokens whose scores are computed; what lies before them is read from the state."""


class Chunked(Variant):
    """A kernel `module.kernel` of fla: `channels`: a decay of each dimension of the key; `delta`: the delta rule."""

    causality: ClassVar = "strict"
    crosses: ClassVar = False
    decodes: ClassVar = False
    uses_dropout = False
    time: ClassVar = "O(N d^2)"
    implementation = "fla"
    module: ClassVar[str]
    kernel: ClassVar[str]
    channels: ClassVar = False
    delta: ClassVar = False

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        # memories of 16 tokens and more, as retention begins with
        slow = -torch.log1p(-(2.0 ** -torch.linspace(4.0, 9.0, shape.heads)))
        start = torch.log(torch.expm1(slow))
        self.decay = nn.Parameter(start[:, None].repeat(1, shape.head_dim) if self.channels else start)
        self.rate = nn.Parameter(torch.zeros(shape.heads)) if self.delta else None

    def supports(self, shape: AttentionShape) -> str | None:
        # first what no other shape would mend
        if not shape.device.startswith("cuda"):
            return f"kernels of fla need a CUDA device, and this is {shape.device}"
        if find_spec("fla") is None:
            return "the package fla is not installed: pip install flash-linear-attention"
        if not shape.causal:
            return "a recurrence is causal"
        if shape.padding:
            return "padding is left to others: fla takes joined sequences, and no mask"
        if shape.dtype not in ("float16", "bfloat16"):
            return f"kernels of fla are timed in float16 and bfloat16, not {shape.dtype}, which its delta rule refuses"
        return super().supports(shape)

    def density(self, shape: AttentionShape) -> float:
        length = shape.max_length
        return min(1.0, 2 * (min(CHUNK, length) + 2 * shape.head_dim) / (length + 1))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.valid is not None or not mask.causal:
            raise Unsupported("kernels of fla take no mask but the causal one")
        queries, keys = query.shape[2], key.shape[2]
        # queries are the last of the sequence; those that are missing are made up
        query = F.pad(query, (0, 0, keys - queries, 0))
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        given = {"g": self._per_token(-F.softplus(self.decay), q)}
        if self.rate is not None:
            given |= {"beta": self._per_token(self.rate.sigmoid(), q), "use_qk_l2norm_in_kernel": True}
        output: Tensor = getattr(import_module(self.module), self.kernel)(q, k, v, **given)[0]
        return output.transpose(1, 2)[:, :, keys - queries :]

    def _per_token(self, gate: Tensor, like: Tensor) -> Tensor:
        """(heads, …) written out as (batch, tokens, heads, …), float32 where it is a decay of heads alone."""
        dtype = like.dtype if gate.dim() > 1 else torch.float32
        return gate.to(dtype).expand(*like.shape[:2], *gate.shape).contiguous()


class ChunkGla(Chunked):
    """Gated linear attention: a decay of each head and dimension of the key."""

    equation: ClassVar = "S_i = diag(a) S_(i-1) + k_i^T v_i; o_i = q_i S_i / sqrt(d)"
    paper: ClassVar = "Yang et al. 2024, Gated Linear Attention Transformers (arXiv 2312.06635)"
    module, kernel, channels = "fla.ops.gla", "chunk_gla", True


class ChunkSimpleGla(Chunked):
    """Linear attention with a decay of each head, as in retention and Mamba-2."""

    equation: ClassVar = "S_i = a S_(i-1) + k_i^T v_i; o_i = q_i S_i / sqrt(d)"
    paper: ClassVar = "Dao & Gu 2024, Transformers are SSMs (arXiv 2405.21060)"
    module, kernel = "fla.ops.simple_gla", "chunk_simple_gla"


class ChunkGatedDelta(Chunked):
    """Gated DeltaNet: the delta rule with a decay of each head; queries and keys are divided by their length."""

    equation: ClassVar = "S_i = (I - b k_i^T k_i) a S_(i-1) + b k_i^T v_i; o_i = q_i S_i / sqrt(d)"
    paper: ClassVar = "Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464)"
    module, kernel, delta = "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", True


class ChunkKda(Chunked):
    """Kimi Delta Attention: the delta rule with a decay of each head and dimension of the key."""

    equation: ClassVar = "S_i = (I - b k_i^T k_i) diag(a) S_(i-1) + b k_i^T v_i; o_i = q_i S_i / sqrt(d)"
    paper: ClassVar = "Kimi Team 2025, Kimi Linear (arXiv 2510.26692)"
    module, kernel, channels, delta = "fla.ops.kda", "chunk_kda", True, True
