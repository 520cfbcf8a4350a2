"""Scaled dot-product softmax attention through PyTorch's fused kernels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from ..contract import Mask


def fused_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V by `scaled_dot_product_attention`, zeros for queries that may see no key.

    query, key: (batch, heads, queries | keys, d); value: (batch, heads, keys, value_dim); keys and values may have
    fewer heads, which divide those of the queries. dropout: of the weights. Returns (batch, heads, queries, value_dim).
    """
    queries, keys = query.shape[2], key.shape[2]
    # the kernel's own causal flag aligns at the first key, so it serves only where both lengths agree
    fused_causal = mask.causal and mask.keep is None and mask.bounds is None and queries == keys
    allowed = None if fused_causal else mask.allowed(queries, keys, query.device)
    dead = None
    if allowed is not None:
        # what the kernel gives on a row without an allowed key depends on the backend, NaN on some
        dead = ~allowed.any(-1, keepdim=True)
        # such a row may see everything, and is set to zero below
        allowed = allowed | dead
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=fused_causal,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output if dead is None else output.masked_fill(dead, 0.0)
