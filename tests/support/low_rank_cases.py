"""Shapes, inputs and variants for the tests of low-rank attention."""

from __future__ import annotations

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Variant

HEADS, WIDTH, LONGEST = 2, 8, 48
FORMS = ("dense", "random", "factorised-dense", "factorised-random")


def shape(causal: bool = False, **more: object) -> AttentionShape:
    return AttentionShape(**{"heads": HEADS, "head_dim": WIDTH, "max_length": LONGEST, "causal": causal} | more)


def draw(*lengths: int, batch: int = 2, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(sum(lengths)))
    return [scale * torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def valid_of(*real: int, length: int) -> Tensor:
    return torch.arange(length)[None, :] < torch.tensor(real)[:, None]


def built(kind: type[Variant], **parameters: object) -> Variant:
    torch.manual_seed(seed(5))
    return kind(shape(), **parameters).double()


def softmax(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
