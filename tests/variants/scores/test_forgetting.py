"""fox against products of its gates, pair by pair in float64."""

from __future__ import annotations

import math

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.scores.forgetting import Forgetting

HEADS, WIDTH, HIDDEN, LENGTH = 4, 6, 10, 19


def made(kv_heads: int = HEADS) -> Forgetting:
    torch.manual_seed(seed(1))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    shape = AttentionShape(**sizes, max_length=64, causal=True)
    variant = Forgetting(shape).double()
    assert (variant.gate.bias == 0).all()
    variant.gate.bias.data.normal_()
    return variant


def drawn(kv_heads: int = HEADS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(2))
    sizes = [(2, HEADS, LENGTH, WIDTH), *2 * [(2, kv_heads, LENGTH, WIDTH)], (2, LENGTH, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_each_exponential_is_multiplied_by_the_gates_in_between(padded: bool, kv_heads: int) -> None:
    variant, (query, key, value, hidden) = made(kv_heads), drawn(kv_heads)
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        valid[0, 3:6], valid[1, :4], valid[1, -2:] = False, False, False
    gates = torch.sigmoid(variant.gate(hidden))
    expected = torch.zeros(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for b in range(2):
        for h in range(HEADS):
            for i in range(LENGTH):
                for j in range(i + 1):
                    if valid[b, j]:
                        score = query[b, h, i] @ key[b, h * kv_heads // HEADS, j] / math.sqrt(WIDTH)
                        kept = math.prod(gates[b, t, h].item() for t in range(j + 1, i + 1) if valid[b, t])
                        expected[b, h, i, j] = math.exp(score) * kept
    expected = (expected / expected.sum(-1, keepdim=True)).nan_to_num(0.0)
    mask = Mask(valid if padded else None, True)
    torch.testing.assert_close(variant.weights(query, key, mask, hidden=hidden), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(4, 9), hidden=hidden), expected[:, :, 4:9])
    output = expected @ value.repeat_interleave(HEADS // kv_heads, 1)
    real = valid[:, None, :, None]
    torch.testing.assert_close(variant(query, key, value, mask, hidden).where(real, 0), output.where(real, 0))


def test_what_lies_outside_its_definition_is_refused() -> None:
    variant, (query, key, value, hidden) = made(), drawn()
    assert "forgets" in str(variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=9)))
    with pytest.raises(Unsupported, match="one sequence"):
        variant(query[:, :, 5:], key, value, Mask(causal=True), hidden[:, 5:])
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(query[:, :, :1], key[:, :, :1], value[:, :, :1])
