"""The question whether a variant tells the order of its keys by itself, as rotary positions do."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....variants.contract import AttentionShape, Mask
from ...core.registry import VARIANTS
from ...core.spec import Spec
from ...process.ask import Reporter, Request


@dataclass(frozen=True, slots=True)
class SeesOrder(Request[bool]):
    """True if two neighbouring tokens of the past that change places change an output, as under rotary positions."""

    variant: Spec

    def answer(self, reporter: Reporter) -> bool:
        shape = AttentionShape(heads=2, head_dim=32, max_length=8, causal=True)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            variant = VARIANTS.build(self.variant, shape).eval()
            query, key, value = torch.randn(3, 1, shape.heads, shape.max_length, shape.head_dim)
            hidden = [torch.randn(1, shape.max_length, shape.hidden_width)] if variant.takes_hidden else []
            swapped = [0, 1, 2, 3, 5, 4, 6, 7]
            # a layer makes its keys and values from the hidden state
            before, after = (
                variant(query, key[:, :, at], value[:, :, at], Mask(causal=True), *(x[:, at] for x in hidden))[:, :, -1]
                for at in ([*range(8)], swapped)
            )
        return not torch.allclose(before, after, atol=1e-4)
