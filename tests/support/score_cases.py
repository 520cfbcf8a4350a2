"""Inputs, variants and the largest tensor of a step for the tests of scoring functions."""

from __future__ import annotations

from typing import Any

import torch
from seeds import seed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.variants import AttentionShape, Mask, Variant, build

HEADS, DIM = 2, 3


def make(selection: str, max_length: int = 8, **shape: Any) -> Any:
    """A float64 variant with every parameter drawn anew, so that no zero or identity of the start hides a mistake."""
    torch.manual_seed(seed(3))
    shape = {"causal": True, "dtype": "float64", **shape}
    variant = build(selection, AttentionShape(heads=HEADS, head_dim=DIM, max_length=max_length, **shape)).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.normal_()
    return variant


def heads(queries: int, keys: int, batch: int = 2, salt: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed(salt))
    sizes = (queries, keys, keys)
    q, k, v = (torch.randn(batch, HEADS, n, DIM, generator=generator, dtype=torch.float64) for n in sizes)
    return q, k, v


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = operation(*arguments, **(keywords or {}))
        made = result if isinstance(result, tuple | list) else [result]
        for tensor in made:
            if isinstance(tensor, Tensor):
                # a view that repeats one number a thousand times holds one number
                held = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, held)
        return result


def largest_of_a_training_step(variant: Variant, length: int, causal: bool = True) -> int:
    shape = variant.shape
    q, k, v = (torch.randn(1, shape.heads, length, shape.head_dim, requires_grad=True) for _ in range(3))
    valid = (torch.arange(length) < length - 5)[None]
    with Largest() as largest:
        variant(q, k, v, Mask(valid, causal)).sum().backward()
    assert all(p.grad is not None for p in variant.parameters())
    return largest.elements
