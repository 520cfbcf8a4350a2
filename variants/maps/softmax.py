"""Softmax attention: the reference of every figure."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, ScoredVariant


class Softmax(ScoredVariant):
    """Scaled dot-product softmax attention, through PyTorch's fused kernels; the reference.

    `impl=eager` is the same function from elementary operations: the twin that the gate compares with.
    """

    kind: ClassVar = "exact"
    simplex: ClassVar = True
    equation: ClassVar = "P = softmax(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Vaswani et al. 2017, Attention Is All You Need, eq. 1"
    memory: ClassVar = "O(N d); eager O(N^2)"

    def __init__(self, shape: AttentionShape, *, impl: Literal["sdpa", "eager"] = "sdpa"):
        super().__init__(shape)
        self.impl = self.implementation = impl

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if self.impl == "eager":
            return super().forward(query, key, value, mask)
        queries, keys = query.shape[2], key.shape[2]
        # the kernel's own causal flag aligns at the first key, so it serves only where both lengths agree
        fused_causal = mask.causal and mask.keep is None and queries == keys
        allowed = None if fused_causal else mask.allowed(queries, keys, query.device)
        dead = None
        if allowed is not None:
            # what the kernel gives on a row without an allowed key depends on the backend, NaN on some
            dead = ~allowed.any(-1, keepdim=True)
            # such a row may see everything, and is set to zero below
            allowed = allowed | dead
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=self.weight_dropout, is_causal=fused_causal
        )
        return output if dead is None else output.masked_fill(dead, 0.0)
