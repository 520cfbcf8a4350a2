"""Which forms a variant has: over both sides, causal, or one of them."""

from __future__ import annotations

import torch

from attnbench.variants import AttentionShape, build
from attnbench.variants.contract import Unsupported


def causal_forms(selection: str) -> list[bool]:
    """`causal` of the shapes that the variant takes: False for both sides, True for the past."""
    found = []
    for causal in (False, True):
        # the draws of a test are its own
        with torch.random.fork_rng(devices=[]):
            try:
                build(selection, AttentionShape(heads=2, head_dim=8, max_length=72, causal=causal))
            except Unsupported:
                continue
        found.append(causal)
    assert found, selection
    return found
