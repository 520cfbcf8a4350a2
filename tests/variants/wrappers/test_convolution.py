"""The short convolution against the depthwise one of PyTorch, and that of released models in transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from wrapper_cases import LENGTH, WIDTH, drawn, wrapped

from attnbench.variants.contract import AttentionShape, Mask, Unsupported


def depthwise(x: Tensor, filters: Tensor) -> Tensor:
    """By `conv1d`, whose last tap is that of the token itself."""
    heads, size = x.shape[1], len(filters)
    channels = x.transpose(-2, -1).flatten(1, 2)
    weight = filters.flip(0)[:, :, 0].permute(1, 2, 0).reshape(heads * WIDTH, 1, size)
    found = F.conv1d(F.pad(channels, (size - 1, 0)), weight, groups=heads * WIDTH)
    return found.unflatten(1, (heads, WIDTH)).transpose(-2, -1)


@pytest.mark.parametrize("activation", ["silu", "none"])
@pytest.mark.parametrize("size", [1, 3, 4, 30])
def test_query_key_and_value_are_convolved_by_dimension(size: int, activation: str) -> None:
    variant = wrapped(f"conv[activation={activation},size={size}]+softmax", kv_heads=2)
    query, key, value, _ = drawn(2)
    given = [depthwise(x, f) for x, f in zip((query, key, value), variant.filters, strict=True)]
    if activation == "silu":
        given = [F.silu(x) for x in given]
    expected = variant.inner(*given, Mask(causal=True))
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), expected)


def test_it_is_the_convolution_of_kimi_linear() -> None:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    variant, (query, *_) = wrapped("conv+softmax"), drawn()
    weight = variant.filters[0].flip(0)[:, :, 0].permute(1, 2, 0).reshape(-1, 4)
    found = kimi.causal_conv1d_fn(query.transpose(-2, -1).flatten(1, 2), weight=weight, bias=None, activation="silu")
    expected = found[..., :LENGTH].unflatten(1, (4, WIDTH)).transpose(-2, -1)
    ours = variant._convolved([F.pad(query, (0, 0, 3, 0))] * 3)[0]
    torch.testing.assert_close(ours, expected)


def test_padded_tokens_count_as_zeros() -> None:
    variant, (query, key, value, _) = wrapped("conv+softmax"), drawn()
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 5:9], valid[1, :3] = False, False
    mask, real = Mask(valid, True), valid[:, None, :, None]
    quiet = variant(query.where(real, 0), key.where(real, 0), value.where(real, 0), mask)
    loud = variant(query.where(real, 7), key.where(real, 7), value.where(real, 7), mask)
    assert torch.equal(quiet.where(real, 0), loud.where(real, 0))


def test_the_state_holds_three_tokens_more_and_other_sequences_are_refused() -> None:
    variant, (query, key, value, _) = wrapped("conv+softmax", kv_heads=2), drawn(2)
    # float32: 3 tokens of 4 heads of queries and twice 2 heads of keys and values, beside a cache of 64
    assert variant.state_bytes(variant.shape) == 3 * (4 + 2 + 2) * WIDTH * 4 + 2 * 2 * WIDTH * 64 * 4
    _, state = variant.step(query[:, :, :1], key[:, :, :1], value[:, :, :1])
    assert [x.untyped_storage().nbytes() for x in state.recent] == [2 * 3 * n * WIDTH * 8 for n in (4, 2, 2)]
    with pytest.raises(Unsupported, match="one sequence"):
        variant(query[:, :, 5:], key, value, Mask(causal=True))
    assert "one sequence" in str(variant.supports(AttentionShape(heads=4, head_dim=8, max_length=9, cross=True)))
