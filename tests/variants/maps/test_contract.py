"""Masks, decoding, padding and gradients of the maps from scores to weights that have no kernels."""

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
    "asentmax",
    "asentmax[form=head]",
    "asentmax[alpha=2,delta=0.5]",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_zero_outside_the_mask_and_rows_without_keys_are_dead(name: str, causal: bool) -> None:
    model = variant(name, causal)
    query, key, value = (t.requires_grad_() for t in inputs())
    mask = Mask(valid=torch.arange(7) < torch.tensor([7, 4, 0])[:, None], causal=causal)
    weights = model.weights(query, key, mask)
    assert not weights[~mask.allowed(7, 7, query.device).expand_as(weights)].any()
    assert (weights >= 0).all() and weights[:2].any()
    output = model(query, key, value, mask)
    assert not output[2].any()
    gradients = torch.autograd.grad(output.square().sum(), [query, key, value, *model.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    assert not any(g[2].any() for g in gradients[:3])


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_whole_and_the_future_changes_nothing(name: str) -> None:
    model = variant(name)
    query, key, value = inputs()
    whole = model(query, key, value, Mask(causal=True))
    state, steps = None, []
    for i in range(7):
        output, state = model.step(*(t[:, :, i : i + 1] for t in (query, key, value)), state)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps, 2), whole)
    torch.testing.assert_close(model(*(t[:, :, :4] for t in (query, key, value)), Mask(causal=True)), whole[:, :, :4])
    torch.testing.assert_close(model(query[:, :, 5:], key, value, Mask(causal=True)), whole[:, :, 5:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(name: str, causal: bool, side: str) -> None:
    model = variant(name, causal)
    query, key, value = inputs()
    short = model(query, key, value, Mask(causal=causal))
    ends = (0, 0, 0, 5) if side == "right" else (0, 0, 5, 0)
    real = slice(0, 7) if side == "right" else slice(5, 12)
    padded = [torch.nn.functional.pad(t, ends, value=9.0) for t in (query, key, value)]
    valid = torch.zeros(3, 12, dtype=torch.bool)
    valid[:, real] = True
    torch.testing.assert_close(model(*padded, Mask(valid=valid, causal=causal))[:, :, real], short)


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
