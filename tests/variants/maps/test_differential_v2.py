"""differential-v2 map by map in float64."""

from __future__ import annotations

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.differential_v2 import DifferentialV2

HEADS, WIDTH, HIDDEN, LENGTH = 4, 6, 10, 15


def made(impl: str, causal: bool = True, kv_heads: int = 2) -> DifferentialV2:
    torch.manual_seed(seed(31))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    return DifferentialV2(AttentionShape(**sizes, max_length=32, causal=causal), impl=impl).double()  # type: ignore[arg-type]


def drawn(kv_heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(32))
    sizes = [(2, HEADS, LENGTH, WIDTH), *2 * [(2, kv_heads, LENGTH, WIDTH)], (2, LENGTH, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("impl", ["sdpa", "eager"])
@pytest.mark.parametrize("causal", [False, True])
def test_each_head_loses_a_share_of_its_second_map(causal: bool, impl: str) -> None:
    variant, (query, key, value, hidden) = made(impl, causal), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 9:] = False
    seen = valid[:, None, None, :] & (torch.ones(LENGTH, LENGTH).tril().bool() | (not causal))
    expected = torch.zeros(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for h in range(HEADS):
        keys = key[:, h // 2].transpose(-2, -1) / WIDTH**0.5
        rows = variant.second_query.weight[h * WIDTH : (h + 1) * WIDTH]
        maps = [(q @ keys).masked_fill(~seen[:, 0], -torch.inf).softmax(-1) for q in (query[:, h], hidden @ rows.T)]
        expected[:, h] = maps[0] - torch.sigmoid(hidden @ variant.share.weight[h])[..., None] * maps[1]
    mask = Mask(valid, causal)
    torch.testing.assert_close(variant.weights(query, key, mask, hidden=hidden), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(3, 8), hidden=hidden), expected[:, :, 3:8])
    torch.testing.assert_close(variant(query, key, value, mask, hidden), expected @ value.repeat_interleave(2, 1))
