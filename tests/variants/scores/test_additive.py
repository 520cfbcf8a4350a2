"""additive: tiles, memory and the normalized form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from score_cases import heads, make

from attnbench.variants.scores import additive


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 200), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_additive_scores_and_gradients_do_not_depend_on_the_tiles(
    queries: int, keys: int, hidden: int, room: int, seed: int
) -> None:
    torch.manual_seed(seed)
    a = torch.randn(2, 3, queries, hidden, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, 3, keys, hidden, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, hidden, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, queries, keys, dtype=torch.float64)
    expected = ((a[:, :, :, None] + b[:, :, None]).tanh() * w[:, None, None]).sum(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_TILE_ON_CPU", room)
        scores = additive.AdditiveScores.apply(a, b, w)
        gradients = torch.autograd.grad(scores, (a, b, w), upstream)
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (a, b, w), upstream))


@given(st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
@torch.no_grad()
def test_normalized_additive_scores_do_not_depend_on_the_length_of_w(scale: float) -> None:
    variant = make("additive[normalized=true]")
    assert variant.bias is not None  # part of that form
    q, k, _ = heads(4, 4)
    before = variant.score(q, k)
    variant.direction *= scale
    torch.testing.assert_close(variant.score(q, k), before)
