"""Inputs and variants for the tests of attention with feature maps."""

from __future__ import annotations

import math

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.cosformer import Cosformer
from attnbench.variants.linear.linear import Linear
from attnbench.variants.linear.performer import Performer
from attnbench.variants.ops.features import FeatureVariant

HEADS, WIDTH, LONGEST = 2, 8, 256
VARIANTS = {
    "linear": lambda shape: Linear(shape),
    "performer": lambda shape: Performer(shape, features=24),
    "performer-relu": lambda shape: Performer(shape, features=24, kernel="relu"),
    "cosformer": lambda shape: Cosformer(shape),
}


def build(name: str, *, causal: bool = False, dtype: torch.dtype = torch.float64) -> FeatureVariant:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, causal=causal)
    return VARIANTS[name](shape).to(dtype)


def draw(*lengths: int, batch: int = 2, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(sum(lengths)))
    return [scale * torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def kernel(name: str, variant: FeatureVariant, query: Tensor, key: Tensor, offset: int) -> Tensor:
    """The unnormalised N x N weights, from each paper's formula."""
    if name == "linear":
        plus = [torch.where(x > 0, x + 1, x.exp()) for x in (query, key)]
        return plus[0] @ plus[1].mT
    if name == "cosformer":
        rows = torch.arange(query.shape[2])[:, None] + offset
        distance = rows - torch.arange(key.shape[2])[None, :]
        return (query.relu() @ key.relu().mT) * (math.pi / 2 * distance.double() / LONGEST).cos()
    assert isinstance(variant, Performer)
    w = variant.projection
    if name == "performer-relu":
        return ((query @ w.T).relu() + 1e-3) @ ((key @ w.T).relu() + 1e-3).mT
    q, k = query / WIDTH**0.25, key / WIDTH**0.25
    left, right = ((x @ w.T - x.square().sum(-1, keepdim=True) / 2).exp() / len(w) ** 0.5 for x in (q, k))
    return left @ right.mT


def brute(
    name: str, variant: FeatureVariant, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> tuple[Tensor, Tensor]:
    """Output and weights."""
    queries, keys = query.shape[2], key.shape[2]
    scores = kernel(name, variant, query, key, keys - queries if mask.causal else 0)
    if mask.valid is not None:
        scores = scores * mask.valid[:, None, None, :]
    if mask.causal:
        scores = scores * torch.ones(queries, keys, dtype=scores.dtype).tril(keys - queries)
    total = scores.sum(-1, keepdim=True)
    total = total.clamp(min=1e-6) if name == "cosformer" else torch.where(total > 0, total, 1.0)
    return scores / total @ value, scores / total
