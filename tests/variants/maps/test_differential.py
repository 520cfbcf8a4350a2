"""differential against two softmax maps of each head, one head at a time in float64."""

from __future__ import annotations

import math

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.differential import Differential

HEADS, WIDTH, LENGTH = 3, 8, 9
FIRST, SECOND = [0, 1, 4, 5], [2, 3, 6, 7]
"""Dimensions of the two maps: quarters of the head in turn."""


def heads() -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed())
    return [torch.randn(2, HEADS, LENGTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3)]


def build(impl: str = "sdpa", layer: int = 3, causal: bool = False) -> Differential:
    torch.manual_seed(seed())
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LENGTH, causal=causal, layer=layer, layers=4)
    variant = Differential(shape, impl=impl).double()  # type: ignore[arg-type]
    with torch.no_grad():
        variant.norm.uniform_(0.5, 2.0)
    return variant


@pytest.mark.parametrize("impl", ["sdpa", "eager"])
@pytest.mark.parametrize("causal", [False, True])
def test_one_softmax_is_taken_from_another(impl: str, causal: bool) -> None:
    variant, (query, key, value) = build(impl, causal=causal), heads()
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    output = variant(query, key, value, Mask(valid, causal))
    weights = variant.weights(query, key, Mask(valid, causal))
    start = 0.8 - 0.6 * math.exp(-0.3 * 3)
    a, b, c, d = variant.vectors.detach()
    factor = math.exp(float(a @ b)) - math.exp(float(c @ d)) + start
    for batch, length in enumerate((LENGTH, 5)):
        for h in range(HEADS):
            for i in range(length):
                seen = slice(0, i + 1 if causal else length)
                maps = [
                    torch.softmax(key[batch, h, seen][:, own] @ query[batch, h, i][own] / 2, 0)
                    for own in (FIRST, SECOND)
                ]
                expected = maps[0] - factor * maps[1]
                torch.testing.assert_close(weights[batch, h, i, seen], expected)
                sums = expected @ value[batch, h, seen]
                normed = sums / (sums.square().mean() + 1e-5).sqrt() * variant.norm * (1 - start)
                torch.testing.assert_close(output[batch, h, i], normed)


def test_the_first_layer_starts_at_a_fifth_and_later_ones_nearer_to_four_fifths() -> None:
    assert build(layer=0).start == pytest.approx(0.2)
    assert build(layer=3).start == pytest.approx(0.556, abs=1e-3)


@pytest.mark.parametrize("pairs", ["neighbours", "half a head apart"])
def test_rotary_positions_keep_the_distance_alone(pairs: str) -> None:
    """A plain split into halves would part the dimensions that are turned together, half a head apart."""
    variant, (query, key, value) = build(), heads()
    angles = torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)

    def turned(x: Tensor, offset: int) -> Tensor:
        by = (torch.arange(LENGTH) + offset)[:, None] * angles
        first, second = (x[..., ::2], x[..., 1::2]) if pairs == "neighbours" else x.chunk(2, -1)
        both = first * by.cos() - second * by.sin(), first * by.sin() + second * by.cos()
        return torch.stack(both, -1).flatten(-2) if pairs == "neighbours" else torch.cat(both, -1)

    outputs = [variant(turned(query, at), turned(key, at), value, Mask()) for at in (0, 50)]
    torch.testing.assert_close(*outputs)
    assert (outputs[0] - variant(query, key, value, Mask())).abs().max() > 1e-2
