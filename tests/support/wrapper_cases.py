"""Wrappers round any variant, their inputs, and decoding token by token."""

from __future__ import annotations

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask, Variant

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


def decoded(variant: Variant, kv_heads: int = HEADS) -> tuple[Tensor, Tensor]:
    """Output of the whole sequence, and of its tokens one by one."""
    query, key, value, hidden = drawn(kv_heads)
    whole, state, steps = variant(query, key, value, Mask(causal=True), hidden), None, []
    for t in range(LENGTH):
        at = slice(t, t + 1)
        output, state = variant.step_with(query[:, :, at], key[:, :, at], value[:, :, at], state, hidden[:, at])
        steps.append(output)
    return whole, torch.cat(steps, 2)
