"""xsa against NeoMME's own module in transformers, and what it takes out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from wrapper_cases import HEADS, LENGTH, drawn, wrapped

from attnbench.variants.contract import AttentionShape, Mask, Unsupported


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_learned_form_is_that_of_a_released_model(kv_heads: int) -> None:
    neomme = pytest.importorskip("transformers.models.neomme.modeling_neomme")
    variant = wrapped("xsa[strength=learned]+softmax", kv_heads=kv_heads)
    sizes = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=kv_heads)
    module = neomme.NeoMMEExclusiveSelfAttention(sizes).double()
    module.alpha.data.copy_(variant.strength)
    query, key, value, hidden = drawn(kv_heads)
    inner = variant.inner(query, key, value, Mask(causal=True))
    expected = module(inner.transpose(1, 2), value).transpose(1, 2)
    # it makes the directions of values in float32
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inner", ["softmax", "local[query_block=4]", "delta"])
def test_nothing_along_the_own_value_is_left_and_all_else_is(inner: str) -> None:
    variant, (query, key, value, hidden) = wrapped(f"xsa+{inner}"), drawn()
    plain = variant.inner(query, key, value, Mask(causal=True), hidden)
    found = variant(query, key, value, Mask(causal=True), hidden)
    assert (found * value).sum(-1).abs().max() < 1e-12
    removed = plain - found
    along = (removed * value).sum(-1).abs()
    torch.testing.assert_close(along, removed.norm(dim=-1) * value.norm(dim=-1))


def test_last_queries_meet_their_own_values_and_others_are_refused() -> None:
    variant, (query, key, value, _) = wrapped("xsa+softmax"), drawn()
    whole = variant(query, key, value, Mask(causal=True))
    tail = variant(query[:, :, -5:], key, value, Mask(causal=True))
    torch.testing.assert_close(tail, whole[:, :, -5:])
    with pytest.raises(Unsupported, match=f"5 queries and {LENGTH} keys"):
        variant(query[:, :, -5:], key, value, Mask())
    assert "one sequence" in str(variant.supports(AttentionShape(heads=4, head_dim=8, max_length=9, cross=True)))


def test_a_value_of_zeros_takes_nothing_out_and_has_finite_gradients() -> None:
    variant, (query, key, value, _) = wrapped("xsa+softmax"), drawn()
    value[:, :, 3] = 0.0
    value.requires_grad_()
    found = variant(query, key, value, Mask(causal=True))
    plain = variant.inner(query, key, value, Mask(causal=True))
    assert torch.equal(found[:, :, 3], plain[:, :, 3])
    assert torch.autograd.grad(found.square().sum(), value)[0].isfinite().all()
