"""Maps of every kind that is written as C++ and as Triton, and their passes in any form."""

from __future__ import annotations

import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.elementwise import ElementwiseMap, elementwise_map
from attnbench.variants.maps.relu_squared import relu_squared
from attnbench.variants.maps.sigmoid import sigmoid
from attnbench.variants.maps.softmax1 import Softmax1
from attnbench.variants.maps.softpick import softpick


@elementwise_map(normaliser="sum", learned={"width": 1.5})
def cauchy(scores: Tensor, width: Tensor) -> Tensor:
    """Weights of a Cauchy distribution, whose width each head learns."""
    return 1.0 / (1.0 + (scores / width).square())


@elementwise_map(learned={"slope": 1.0})
def many_operators(scores: Tensor, count: Tensor, slope: Tensor, *, power: float = 0.5) -> Tensor:
    """What fused code has to write: conditions, bounds, powers and functions."""
    bent = torch.where(scores > 0.1, scores.abs(), scores.tanh().clamp(-0.3, 0.9))
    return torch.nn.functional.softplus(scores * slope) * bent / count**power


MAPS = (sigmoid, relu_squared, softpick, Softmax1, cauchy, many_operators)


def passes_of(
    kind: type[ElementwiseMap], impl: str, inputs: tuple[Tensor, ...], upstream: Tensor, mask: Mask, rate: float
) -> list[Tensor]:
    """The output, and the gradients of inputs and parameters, under one mask of dropout."""
    options = {"sink": "learned"} if kind is Softmax1 else {}
    shape = AttentionShape(heads=inputs[0].shape[1], head_dim=inputs[0].shape[-1], max_length=400, dropout=rate)
    variant = kind(shape, impl=impl, **options).train().to(upstream)  # type: ignore[arg-type]
    for parameter in variant.parameters():
        parameter.data += torch.linspace(-0.5, 0.7, parameter.numel(), device=upstream.device)
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(seed(9))
    output = variant(leaves[0], leaves[1], leaves[2], mask)
    assert variant.implementation == impl
    return [output.detach(), *torch.autograd.grad(output, [*leaves, *variant.parameters()], upstream)]


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest error, relative to the largest entry of its tensor."""
    pairs = zip(found, expected, strict=True)
    return max(float((x.double() - y).abs().max() / y.abs().max().clamp(min=1e-9)) for x, y in pairs)
