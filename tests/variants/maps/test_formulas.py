"""Maps from scores to weights against their formulas in float64, with and without a future, beside padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from map_cases import inputs, variant
from torch import Tensor

from attnbench.variants.contract import Mask, SelectionError
from attnbench.variants.ops.entmax import entmax, entmax15


def softmax1(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    sink = torch.zeros(2) if model.sink is None else model.sink
    powers = scores.exp() * allowed
    return powers / (powers.sum(-1, keepdim=True) + sink.exp()[:, None, None])


def softpick(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    above = torch.expm1(scores) * allowed
    return above.clamp(min=0) / (above.abs().sum(-1, keepdim=True) + 1e-8)


def topk(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    seen = scores.masked_fill(~allowed, -torch.inf)
    third = seen.sort(-1, descending=True).values[..., 2:3]
    return seen.masked_fill(seen < third, -torch.inf).softmax(-1)


def scalable_softmax(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    powers = counted(model, allowed) ** (model.slope[:, None, None] * scores) * allowed
    return powers / powers.sum(-1, keepdim=True)


def asentmax_by_head(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    factor = 1 + model.beta[:, None, None] * counted(model, allowed).log() ** model.gamma[:, None, None]
    return entmax15((scores * factor).masked_fill(~allowed, -torch.inf))


def asentmax(model: Any, scores: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
    beta = torch.log1p(torch.einsum("bhqd,hd->bhq", query, model.beta).exp())[..., None]
    gamma = 3 * torch.einsum("bhqd,hd->bhq", query, model.gamma).tanh()[..., None]
    factor = 0.5 + beta * counted(model, allowed).log() ** gamma
    return entmax((scores * factor).masked_fill(~allowed, -torch.inf), 2.0)


def counted(model: Any, allowed: Tensor) -> Tensor:
    """Keys that a query may see; looking back one more, so that the first query has no logarithm of one."""
    return keys(allowed) + model.shape.causal


def keys(allowed: Tensor) -> Tensor:
    return allowed.sum(-1, keepdim=True).clamp(min=1).double()


FORMULAS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    "relu-squared": lambda model, scores, allowed, query: scores.relu() ** 2 / keys(allowed) * allowed,
    "relu-squared[power=0]": lambda model, scores, allowed, query: scores.relu() ** 2 * allowed,
    "sigmoid": lambda model, scores, allowed, query: allowed / (1 + keys(allowed) * (-scores).exp()),
    "sigmoid[bias=-2.0]": lambda model, scores, allowed, query: torch.sigmoid(scores - 2) * allowed,
    "softmax1": softmax1,
    "softmax1[sink=learned]": softmax1,
    "softpick": softpick,
    "topk[k=3]": topk,
    "scalable-softmax": scalable_softmax,
    "asentmax[form=head]": asentmax_by_head,
    "asentmax[alpha=2,delta=0.5,gamma_range=3]": asentmax,
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_weights_and_output_are_those_of_the_formula(name: str, causal: bool) -> None:
    model, (query, key, value) = variant(name, causal), inputs()
    if "sink" in name:
        model.sink.data.copy_(torch.tensor([-1.5, 2.0]))
    valid = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    allowed = valid[:, None, None, :] & (torch.ones(7, 7).tril().bool() | (not causal))
    expected = FORMULAS[name](model, query @ key.transpose(-2, -1) / 2, allowed, query)
    mask, real = Mask(valid, causal), valid[:, None, :, None]
    found = model.weights(query, key, mask)
    torch.testing.assert_close(found.where(real, 0), expected.where(real, 0))
    assert torch.equal(model.weights(query, key, mask, slice(2, 5)), found[:, :, 2:5])
    torch.testing.assert_close(model(query, key, value, mask).where(real, 0), (expected @ value).where(real, 0))


def test_slopes_start_near_one_and_scales_within_their_range() -> None:
    assert (variant("scalable-softmax").slope - 1).abs().max() < 0.1
    beta = variant("asentmax[form=head]").beta
    assert (beta >= 0.1).all() and (beta <= 1).all()


@pytest.mark.parametrize("name", ["softmax1", "softpick"])
def test_scores_of_any_size_keep_finite_weights_and_gradients(name: str) -> None:
    scores = torch.tensor([[1e4, 0.0, 1e4], [-1e4, -1e4, -1e4], [-1e4, 90.0, 0.0]], requires_grad=True)
    for allowed in (None, torch.tensor([False, True, True]), torch.zeros(3, dtype=torch.bool)):
        weights = variant(name).float().weigh(scores, allowed)
        expected = torch.tensor([[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]])
        if allowed is not None:
            expected = torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 1, 0]]) * allowed
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)
        assert torch.autograd.grad(weights.square().sum(), scores)[0].isfinite().all()


@pytest.mark.parametrize("name", ["asentmax[alpha=0.5]", "entmax[alpha=0.5]"])
def test_a_wrong_alpha_is_refused(name: str) -> None:
    with pytest.raises(SelectionError, match=r"alpha to be float from 1 to .* got 0.5"):
        variant(name)
