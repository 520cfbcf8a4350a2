"""Sums in one order: no gradient is added up in the order in which threads happen to come."""

from __future__ import annotations

import pytest
import torch

from attnbench.bench.core.registry import VARIANTS
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask, Unsupported


def functions(output: torch.Tensor) -> set[str]:
    """Names of all steps of the backward pass."""
    found, left = set(), [output.grad_fn]
    while left:
        step = left.pop()
        if step is not None and step not in found:
            found.add(step)
            left += [before for before, _ in step.next_functions]
    return {type(step).__name__ for step in found}


@pytest.mark.parametrize(
    "name", sorted(entry.name for entry in VARIANTS.entries() if entry.origin.split()[0] == "attnbench")
)
def test_no_gradient_goes_through_an_index_in_brackets(name: str) -> None:
    """On a CPU with two threads its sums differ in about one pass of 300, too few to be seen by repeating."""
    forms = 0
    for causal in (False, True):
        try:
            variant = build(name, AttentionShape(heads=4, head_dim=16, max_length=96, causal=causal))
        except Unsupported:
            continue
        forms += 1
        query, key, value = (torch.randn(2, 4, 96, 16, requires_grad=True) for _ in range(3))
        output = variant(query, key, value, Mask(causal=causal), torch.randn(2, 96, 64, requires_grad=True))
        assert not functions(output) & {"IndexBackward0", "IndexPutBackward0"}
    assert forms
