"""Gradients of the maps from scores to weights, and whether they see a constant."""

import pytest
import torch
from map_cases import draw, inputs, variant
from torch.autograd import gradcheck

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask

NAMES = [
    "relu-squared",
    "relu-squared[power=0]",
    "sigmoid",
    "sigmoid[bias=-2.0]",
    "topk[k=3]",
    "scalable-softmax",
    "scalable-softmax[bias=true]",
    "softpick",
    "stick-breaking",
    "selective",
    "asentmax",
    "asentmax[form=head]",
    "asentmax[alpha=2,delta=0.5]",
]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_derivatives(name: str) -> None:
    model = variant(name)
    query, key, value = (t[:1].requires_grad_() for t in inputs(4, 4))
    parameters = list(model.parameters())
    assert gradcheck(lambda *_: model(query, key, value, Mask(causal=True)), (query, key, value, *parameters))


@pytest.mark.parametrize("name", ["topk[k=3]", "scalable-softmax", "asentmax"])
def test_maps_onto_the_simplex_do_not_see_a_constant(name: str) -> None:
    model, scores = variant(name), draw(2, 2, 5, 7)
    torch.testing.assert_close(model.weigh(scores + 3.0, None), model.weigh(scores, None))
    torch.testing.assert_close(model.weigh(scores, None).sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))


@pytest.mark.parametrize("name", ["relu-squared", "sigmoid"])
def test_maps_off_the_simplex_do_see_a_constant(name: str) -> None:
    model, scores = variant(name), draw(2, 2, 5, 7)
    assert (model.weigh(scores + 3.0, None) - model.weigh(scores, None)).abs().amax(-1).min() > 0.1
    assert (model.weigh(scores, None).sum(-1) - 1).abs().max() > 1e-2


def test_a_wrong_alpha_is_refused() -> None:
    for name in ("asentmax[alpha=0.5]", "entmax[alpha=0.5]"):
        with pytest.raises(SelectionError, match=r"alpha to be float from 1 to .* got 0.5"):
            variant(name)
