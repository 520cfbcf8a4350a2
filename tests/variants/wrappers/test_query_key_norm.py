"""qk-norm against the norm of Qwen3 in transformers, and against cosines."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from wrapper_cases import WIDTH, drawn, wrapped

from attnbench.bench.models.positions import rotated
from attnbench.variants.contract import Mask


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_one_scale_for_each_dimension_is_the_norm_of_qwen3(kv_heads: int) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    variant, (query, key, value, _) = wrapped("qk-norm[scale=dimension]+softmax", kv_heads=kv_heads), drawn(kv_heads)
    norms = [qwen.Qwen3RMSNorm(WIDTH, eps=1e-6).double() for _ in range(2)]
    for norm, scale in zip(norms, (variant.query_scale, variant.key_scale), strict=True):
        norm.weight.data.copy_(scale)
    expected = variant.inner(norms[0](query), norms[1](key), value, Mask(causal=True))
    # it normalises in float32
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), expected, rtol=1e-5, atol=1e-6)


def test_one_scale_for_each_head_gives_cosines_and_none_beyond_it() -> None:
    variant, (query, key, value, _) = wrapped("qk-norm+softmax", causal=False), drawn()
    cosines = F.cosine_similarity(query[:, :, :, None], key[:, :, None], dim=-1)
    expected = (cosines * WIDTH**0.5 * variant.query_scale).softmax(-1)
    torch.testing.assert_close(variant.weights(query, key, Mask()), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        variant.weights(query, key, Mask(), slice(3, 8)), expected[:, :, 3:8], rtol=1e-5, atol=1e-7
    )
    huge = variant(1e4 * query, key, value, Mask())
    torch.testing.assert_close(huge, variant(query, key, value, Mask()), rtol=1e-5, atol=1e-6)


def test_rotary_positions_may_come_before_a_scale_of_each_head() -> None:
    """A rotation keeps the length, so that the norm of a rotated query is the rotated norm."""
    variant, (query, key, value, _) = wrapped("qk-norm+softmax"), drawn()
    before = variant(rotated(query), rotated(key), value, Mask(causal=True))
    rms = [F.rms_norm(x, (WIDTH,), eps=1e-6) for x in (query, key)]
    after = variant.inner(rotated(rms[0]) * variant.query_scale, rotated(rms[1]), value, Mask(causal=True))
    torch.testing.assert_close(before, after)
