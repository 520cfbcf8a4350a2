"""Maps of every kind that is written as C++ and as Triton, and their passes in any form."""

from __future__ import annotations

from collections.abc import Callable

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


@elementwise_map(normaliser="sum", learned={"max": 1})
def conditions_of_a_query(scores: Tensor, count: Tensor, max: Tensor) -> Tensor:
    """Numbers of a query that are true or false, and a learned one with a name of Python's."""
    bent = torch.where(count > 30, scores, scores.abs()).tanh() * max.clamp(min=0.8)
    return (bent - max.abs()).exp()


MAPS = (sigmoid, relu_squared, softpick, Softmax1, cauchy, many_operators, conditions_of_a_query)
# true and false among numbers, whole numbers, numbers that the function holds
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda s: s * (s > 0),
    lambda s: s * ((s > 0).float() + (s > 1).float()),
    lambda s: s * ((s > 0).long() + (s > 1).long()),
    lambda s: s * (torch.logical_and(s, s > -2) | ~(s < 1) & torch.logical_not(s > 20)),
    lambda s: s - s.int(),
    lambda s: (s > 0).float(),
    lambda s: torch.where(torch.isnan(s), 0.0, s) * torch.tensor(0.3),
    lambda s: torch.where(s.bool(), s.cosh(), s + torch.ones_like(s, dtype=torch.bool)),
    lambda s: torch.where(~(s > 0.3), s.clamp(-0.5, 2.0), s.maximum(s.sin())) * (s != 0.5),
)
POINTS = (-30.0, -3.0, -1.0, -0.5, -1e-4, -1e-8, 0.0, 1e-8, 1e-4, 0.2, 0.5, 1.0, 2.5, 30.0)


def assert_is_its_map(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], function: Callable[[Tensor], Tensor], device: str = "cpu"
) -> None:
    """With one key of 1 whose value is 1 the sum is the map of the query, and its gradient the map's."""
    points = torch.tensor(POINTS).to(device)
    query, one = points[None, None, :, None].clone().requires_grad_(), torch.ones(1, 1, 1, 1, device=device)
    exact = points.double().requires_grad_()
    expected = function(exact)
    slope = torch.autograd.grad(expected.sum(), exact)[0] if expected.requires_grad else torch.zeros_like(exact)
    found = attend(query, one, one)
    (gradient,) = torch.autograd.grad(found.sum(), query)
    torch.testing.assert_close(found.flatten(), expected.float(), rtol=2e-6, atol=1e-30, equal_nan=True)
    torch.testing.assert_close(gradient.flatten(), slope.float(), rtol=2e-5, atol=1e-6, equal_nan=True)


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
