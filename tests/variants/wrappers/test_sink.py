"""A sink against sums of exponentials, and against the same key without a value written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from wrapper_cases import LENGTH, WIDTH, drawn, wrapped

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask, Unsupported


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_sink_is_one_more_term_of_each_sum(kv_heads: int, causal: bool) -> None:
    variant, (query, key, value, _) = wrapped("sink+softmax", causal, kv_heads), drawn(kv_heads)
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, 5:9] = False
    keys, values, sinks = (x.repeat_interleave(4 // kv_heads, -3) for x in (key, value, variant.key))
    seen = valid[:, None, None, :] & (torch.ones(LENGTH, LENGTH).tril().bool() | (not causal))
    exponentials = (query @ keys.transpose(-2, -1) / WIDTH**0.5).exp() * seen
    sink = (query @ sinks.transpose(-2, -1) / WIDTH**0.5).exp()
    expected = exponentials / (exponentials.sum(-1, keepdim=True) + sink)
    mask = Mask(valid, causal)
    torch.testing.assert_close(variant.weights(query, key, mask), expected)
    torch.testing.assert_close(variant.weights(query, key, mask, slice(2, 7)), expected[:, :, 2:7])
    real = valid[:, None, :, None]
    torch.testing.assert_close(variant(query, key, value, mask).where(real, 0), (expected @ values).where(real, 0))


def test_a_sparse_map_gives_the_sink_what_the_keys_do_not_get() -> None:
    variant, (query, key, value, _) = wrapped("sink+entmax15"), drawn()
    sink = variant.key.expand(2, -1, -1, -1)
    expected = build("entmax15", AttentionShape(heads=4, head_dim=WIDTH, max_length=64)).double()
    # the last query sees all keys
    last = expected(query[:, :, -1:], torch.cat([sink, key], 2), F.pad(value, (0, 0, 1, 0)), Mask())
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True))[:, :, -1:], last)
    sums = variant.weights(query, key, Mask(causal=True)).sum(-1)
    assert (sums < 1 - 1e-6).any() and (sums == 1).any() and (sums <= 1 + 1e-12).all()


@pytest.mark.parametrize("inner", ["rela", "delta", "window", "linear", "sigmoid", "fox"])
def test_no_sum_of_one_to_share_is_refused(inner: str) -> None:
    with pytest.raises(Unsupported, match="a sum of one"):
        wrapped(f"sink+{inner}")
