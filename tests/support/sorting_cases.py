"""Shapes, inputs and variants for the tests of attention that sorts its tokens."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn

HEADS, WIDTH, LONGEST = 2, 8, 48


def shape(causal: bool = False) -> AttentionShape:
    return AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, causal=causal)


def draw(*lengths: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(sum(lengths)))
    return [torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def valid_of(*real: int, length: int) -> Tensor:
    return torch.arange(length)[None, :] < torch.tensor(real)[:, None]


def reformer(*, causal: bool = False, bucket: int = 4, hashes: int = 3) -> Reformer:
    torch.manual_seed(seed(3))
    return Reformer(shape(causal), bucket=bucket, hashes=hashes).double()


def sinkhorn_of(*, causal: bool = False, block: int = 5, **more: float) -> Sinkhorn:
    torch.manual_seed(seed(3))
    variant = Sinkhorn(shape(causal), block=block, **more).double()
    with torch.no_grad():  # so that the sorting is far from uniform
        variant.sorter.w2.mul_(6)
    return variant


def released(package: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package, reason=f"the package {package} is not installed")
        return importlib.import_module(f"{package}.{package}")


def build(name: str, causal: bool) -> Reformer | Sinkhorn:
    return reformer(causal=causal) if name == "reformer" else sinkhorn_of(causal=causal)
