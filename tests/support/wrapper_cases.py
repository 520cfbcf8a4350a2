"""Wrappers round any variant, their inputs, and decoding token by token."""

from __future__ import annotations

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Variant

HEADS, WIDTH, HIDDEN, LENGTH = 4, 8, 12, 21


def wrapped(name: str, causal: bool = True, kv_heads: int = HEADS) -> Variant:
    """In float64, with parameters that are not where they start."""
    torch.manual_seed(seed(5))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    variant = build(name, AttentionShape(**sizes, max_length=64, causal=causal)).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return variant


def drawn(kv_heads: int = HEADS) -> list[Tensor]:
    """Query, key, value and hidden state, float64."""
    generator = torch.Generator().manual_seed(seed(6))
    heads = (HEADS, kv_heads, kv_heads)
    inputs = [torch.randn(2, n, LENGTH, WIDTH, generator=generator, dtype=torch.float64) for n in heads]
    return [*inputs, torch.randn(2, LENGTH, HIDDEN, generator=generator, dtype=torch.float64)]
