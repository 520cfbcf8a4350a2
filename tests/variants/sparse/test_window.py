"""Sliding windows against gpt-oss's own function in transformers, and against a dense float64 softmax."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.sparse.window import Window

HEADS, WIDTH = 4, 8


def made(size: int, sink: str = "learned", causal: bool = True, kv_heads: int = HEADS) -> Window:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=64, causal=causal, kv_heads=kv_heads)
    variant = Window(shape, size=size, sink=sink).double()  # type: ignore[arg-type]
    if variant.sink is not None:
        variant.sink.data.copy_(torch.tensor([-2.0, 0.0, 1.5, 4.0]))
    return variant


def drawn(length: int, kv_heads: int = HEADS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(length))
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(2, n, length, WIDTH, generator=generator, dtype=torch.float64) for n in heads]


def seen_pairs(length: int, size: int, causal: bool) -> Tensor:
    """Boolean (queries, keys), pair by pair from the definition."""
    pairs = [[abs(i - j) < size and (j <= i or not causal) for j in range(length)] for i in range(length)]
    return torch.tensor(pairs)


@pytest.mark.parametrize(("size", "length"), [(1, 9), (5, 23), (8, 64), (30, 20)])
def test_the_window_with_a_sink_is_that_of_gpt_oss(size: int, length: int) -> None:
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    variant = made(size, kv_heads=2)
    query, key, value = drawn(length, 2)
    module = SimpleNamespace(num_key_value_groups=2, sinks=variant.sink, training=False)
    mask = torch.zeros(length, length, dtype=torch.float64).masked_fill(~seen_pairs(length, size, True), -torch.inf)
    output, weights = gpt_oss.eager_attention_forward(module, query, key, value, mask, WIDTH**-0.5)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), output.transpose(1, 2))
    torch.testing.assert_close(variant.weights(query, key, Mask(causal=True)), weights)


@pytest.mark.parametrize("sink", ["none", "learned"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 50])
def test_equals_a_dense_softmax_under_the_mask_of_the_window(size: int, causal: bool, sink: str) -> None:
    variant, (query, key, value) = made(size, sink, causal), drawn(37)
    valid = torch.rand(2, 37, generator=torch.Generator().manual_seed(seed(3))) > 0.3
    seen = seen_pairs(37, size, causal) & valid[:, None, None, :]
    exponentials = (query @ key.transpose(-2, -1) / WIDTH**0.5).exp() * seen
    total = exponentials.sum(-1, keepdim=True)
    if variant.sink is not None:
        total = total + variant.sink.exp()[:, None, None]
    expected = (exponentials / total).nan_to_num(0.0)
    mask = Mask(valid, causal)
    real = valid[:, None, :, None]
    torch.testing.assert_close(variant(query, key, value, mask).where(real, 0), (expected @ value).where(real, 0))
    torch.testing.assert_close(variant.weights(query, key, mask), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(9, 20)), expected[:, :, 9:20])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 3, 16, 40])
def test_density_counts_the_pairs_of_the_window(size: int, causal: bool) -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16, causal=causal)
    pairs = seen_pairs(16, size, causal).sum().item()
    assert Window(shape, size=size).density(shape) == pairs / (16 * 17 / 2 if causal else 16 * 16)


def test_the_default_size_is_that_of_gpt_oss_or_an_eighth() -> None:
    assert [Window(AttentionShape(heads=1, head_dim=4, max_length=n)).size for n in (4, 256, 4096)] == [1, 32, 128]
    with pytest.raises(SelectionError, match="size of at least 1"):
        Window(AttentionShape(heads=1, head_dim=4, max_length=8), size=0)
