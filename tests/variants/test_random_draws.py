"""Random numbers of variants: drawn anew for each seed, saved with the model, apart from all other draws."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from causal_forms import causal_forms
from torch import Tensor

from attnbench.bench.models.blocks import Model
from attnbench.bench.models.decoder import Decoder
from attnbench.bench.models.encoder import Encoder
from attnbench.tasks.contract import Classification, Recipe
from attnbench.tasks.problems.language_modeling import Language
from attnbench.variants import build

LANGUAGE = Language(vocabulary=11)
PROBLEM = Classification(vocabulary=11, classes=3)
RECIPE = Recipe(length=96, width=16, heads=2, layers=2, feed_forward=16, dropout=0.0)
DRAWN_BUFFERS = {
    "bigbird": {"plan"},
    "local-routing": {"routing.centroids.mean", "routing.centroids.total"},
    "performer": {"feature_seed", "projection"},
    "reformer": {"rotations"},
    "routing": {"centroids.mean", "centroids.total"},
}
NAMES = [*DRAWN_BUFFERS, "softmax", "rela", "additive-lm", "delta"]


def fresh(name: str, seed: int) -> Model:
    """An encoder, or a language model where the variant is causal only."""
    if causal_forms(name) == [True]:
        return Decoder(LANGUAGE, RECIPE, lambda shape: build(name, shape), seed)
    return Encoder(PROBLEM, RECIPE, lambda shape: build(name, shape), seed)


@cache
def model_of(name: str, seed: int) -> Model:
    return fresh(name, seed).eval()


def state(model: Model, layer: int) -> dict[str, Tensor]:
    return dict(model.variants[layer].state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_differs_between_seeds_and_layers_and_is_the_same_for_one_seed(name: str) -> None:
    first, other = state(model_of(name, 0), 0), state(model_of(name, 1), 0)
    second_layer = state(model_of(name, 0), 1)
    again = state(fresh(name, 0), 0)
    assert first.keys() == again.keys() == other.keys() == second_layer.keys()
    assert all(torch.equal(value, again[at]) for at, value in first.items())
    by_seed, by_layer = (
        {at for at, value in first.items() if not torch.equal(value, rival[at])} for rival in (other, second_layer)
    )
    assert by_seed == by_layer
    buffers = {at for at, _ in model_of(name, 0).variants[0].named_buffers()}
    assert by_seed & buffers == DRAWN_BUFFERS.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_a_reloaded_model_has_the_draws_it_was_saved_with(name: str) -> None:
    saved = model_of(name, 0)
    loaded = fresh(name, 1).eval()
    tokens = torch.randint(1, 11, (2, 1, 96), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[96], [70]])
    tokens[1, :, 70:] = 0
    with torch.no_grad():
        inputs = (tokens[:, 0],) if isinstance(saved, Decoder) else (tokens, lengths)
        expected = saved(*inputs)
        assert not torch.equal(loaded(*inputs), expected)
        loaded.load_state_dict(saved.state_dict())
        assert torch.equal(loaded(*inputs), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_moves_neither_the_shared_parameters_nor_the_random_numbers_of_its_caller(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = fresh(name, 0).train()
    model.after_step()
    assert torch.equal(torch.get_rng_state(), before)
    own = dict(model.named_parameters())
    kind = type(model)
    reference = kind(model.problem, RECIPE, lambda shape: build("softmax", shape), 0)
    for at, shared in reference.named_parameters():
        assert torch.equal(shared, own[at]), at
