"""Layers with projections of their own in our models, and models of matched size."""

import pytest
import torch
from seeds import seed
from torch import Tensor, nn

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.gate.suite import quick_gate
from attnbench.bench.models.blocks import Model
from attnbench.bench.models.decoder import Decoder
from attnbench.bench.models.encoder import Encoder
from attnbench.tasks.contract import Classification, Recipe
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Layer
from attnbench.variants.wrappers.matched import MatchedParameters

SIZES = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 64, "length": 12}
PER_UNIT = 2 * 16 + 1


class Decay(Layer):
    """y_t = W_o s_t, s_t = a s_(t-1) + W_v x_t where x_t is real: a layer whose state is one vector."""

    decodes = True

    def __init__(self, shape: AttentionShape, *, factor: int = 1):
        super().__init__(shape)
        width = shape.hidden_width
        self.inner = nn.Linear(width, factor * width, bias=False)
        self.outer = nn.Linear(factor * width, width)

    def transform(self, x: Tensor, mask: Mask) -> Tensor:
        length = x.shape[1]
        value = self.inner(x)
        if mask.valid is not None:
            value = value.masked_fill(~mask.valid[..., None], 0.0)
        at = torch.arange(length, device=x.device)
        distance = (at[:, None] - at).to(x.dtype)
        weights = 0.5 ** distance.abs()
        return self.outer((weights.tril() if mask.causal else weights) @ value)

    def advance(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value = self.inner(x)
        state = value if state is None else 0.5 * state + value
        return self.outer(state), state

    def state_bytes(self, shape: AttentionShape) -> int:
        return self.inner.out_features * shape.bytes_per_value


class FutureMean(Decay):
    """Adds a thousandth of the mean over all positions."""

    def transform(self, x: Tensor, mask: Mask) -> Tensor:
        return super().transform(x, mask) + 1e-3 * x.mean(1, keepdim=True)


def language(make) -> Decoder:  # type: ignore[no-untyped-def]
    return Decoder(Language(vocabulary=50), LanguageRecipe(**SIZES, stride=6), make, seed=3).eval()  # type: ignore[arg-type]


def classifier(make) -> Encoder:  # type: ignore[no-untyped-def]
    return Encoder(Classification(vocabulary=50, classes=3), Recipe(**SIZES), make, seed=3).eval()  # type: ignore[arg-type]


MODELS = [language, classifier]


def softmax(shape: AttentionShape):  # type: ignore[no-untyped-def]
    return build("softmax", shape)


def named(model: Model) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("model_of", MODELS)
def test_it_takes_the_place_of_the_projections_and_moves_no_other_draw(model_of) -> None:  # type: ignore[no-untyped-def]
    ours, reference = named(model_of(Decay)), named(model_of(softmax))
    replaced = {name for name in reference if ".attention.project_" in name}
    assert replaced and not replaced & ours.keys()
    own = {name for name in ours if ".attention.variant." in name}
    assert ours.keys() - own == reference.keys() - replaced
    for name in ours.keys() - own:
        assert torch.equal(ours[name], reference[name]), name


@pytest.mark.parametrize("model_of", MODELS)
@pytest.mark.parametrize("factor", [1, 5])
def test_what_it_adds_is_the_difference_to_the_model_of_softmax(model_of, factor) -> None:  # type: ignore[no-untyped-def]
    def make(shape: AttentionShape) -> Layer:
        return Decay(shape, factor=factor)

    def matched(shape: AttentionShape) -> MatchedParameters:
        return MatchedParameters(shape, make(shape))

    reference, _ = model_of(softmax).parameter_counts()
    whole, added = model_of(make).parameter_counts()
    assert whole - reference == added != 0
    equal, still_added = model_of(matched).parameter_counts()
    assert still_added == added and abs(equal - reference) <= SIZES["layers"] * PER_UNIT / 2


def test_a_wrapped_variant_gives_up_what_the_wrapper_adds() -> None:
    reference, _ = language(softmax).parameter_counts()
    larger, added = language(lambda shape: build("gate+softmax", shape)).parameter_counts()
    equal, _ = language(lambda shape: build("matched+gate+softmax", shape)).parameter_counts()
    assert added == larger - reference == 2 * 16 * 16
    assert abs(equal - reference) <= 2 * PER_UNIT / 2


def test_a_layer_too_large_for_the_feed_forward_is_refused() -> None:
    def make(shape: AttentionShape) -> MatchedParameters:
        return MatchedParameters(shape, Decay(shape, factor=100))

    with pytest.raises(Unsupported, match="cannot give up so many"):
        language(make)


def test_decoding_gives_what_the_whole_sequence_gives() -> None:
    model = language(Decay)
    ids = torch.randint(1, 50, (3, 12), generator=torch.Generator().manual_seed(seed(1)))
    with torch.no_grad():
        whole, state, steps = model(ids), model.begin(), []
        for at in range(12):
            logits, state = model.step(ids[:, at], state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole)


@pytest.mark.parametrize("causal", [True, False])
def test_the_gate_examines_it_by_its_hidden_state(causal: bool) -> None:
    shape = AttentionShape(heads=2, head_dim=8, max_length=40, causal=causal)
    assert quick_gate(Decay, shape) is None
    failure = quick_gate(FutureMean, shape)
    assert failure is not None and failure.property == ("causal" if causal else "padding content")


def test_alibi_cannot_be_given_to_it() -> None:
    with pytest.raises(Unsupported, match="positions=alibi"):
        Decoder(Language(vocabulary=50), LanguageRecipe(**SIZES, stride=6, positions="alibi"), Decay, seed=3)  # type: ignore[arg-type]
