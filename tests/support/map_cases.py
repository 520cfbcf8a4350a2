"""Inputs and variants for the tests of maps from scores to weights."""

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape


def draw(*shape: int, salt: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed(salt)), dtype=torch.float64)


def variant(name: str, causal: bool = True):
    torch.manual_seed(seed(0))
    return build(name, AttentionShape(heads=2, head_dim=4, max_length=16, causal=causal)).double()


def inputs(queries: int = 7, keys: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    return draw(3, 2, queries, 4), draw(3, 2, keys, 4, salt=1), draw(3, 2, keys, 4, salt=2)
