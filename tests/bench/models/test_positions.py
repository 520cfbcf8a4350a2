"""Rotations, biases and the convolution: their formulas, the models that use them, and what is refused."""

import math

import pytest
import torch

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.models.blocks import EmbeddingConvolution, attention_shape
from attnbench.bench.models.decoder import Decoder
from attnbench.bench.models.encoder import Encoder
from attnbench.bench.models.positions import LinearBias, rotated
from attnbench.tasks.contract import Classification, Recipe
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe
from attnbench.variants import AttentionShape, Mask, build

HEADS, DIM, LENGTH = 4, 6, 11
SHAPE = {"layers": 2, "width": 24, "heads": HEADS, "feed_forward": 32, "length": 24}


def heads(seed: int = 0, dim: int = DIM, length: int = LENGTH) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(3, 2, HEADS, length, dim, dtype=torch.float64, generator=random)


def bias() -> torch.Tensor:
    """-m (i - j) as Press et al. 2022 write it, by loops."""
    found = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(HEADS):
        for i in range(LENGTH):
            for j in range(LENGTH):
                found[head, i, j] = -(2.0 ** (-8 * (head + 1) / HEADS)) * (i - j)
    return found


# ---------------------------------------------------------------- rotation


def test_rotation_multiplies_complex_numbers_by_those_of_the_unit_circle() -> None:
    query = heads()[0]
    turned = rotated(query)
    for i in (0, 1, 7):
        for t in range(DIM // 2):
            number = torch.complex(query[..., i, 2 * t], query[..., i, 2 * t + 1])
            expected = number * complex(math.cos(i * 10_000 ** (-2 * t / DIM)), math.sin(i * 10_000 ** (-2 * t / DIM)))
            found = torch.complex(turned[..., i, 2 * t], turned[..., i, 2 * t + 1])
            torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------- bias


@pytest.mark.parametrize("variant", ["softmax[impl=eager]", "entmax15[impl=eager]", "sigmoid", "topk[k=3]", "rela"])
def test_two_dimensions_add_the_bias_to_the_scores_of_any_map(variant: str) -> None:
    query, key, value = heads()
    shape = AttentionShape(
        heads=HEADS, head_dim=DIM + 2, max_length=LENGTH, causal=True, padding=False, dtype="float64"
    )
    wide = build(variant, shape).double()
    found = wide.weights(*LinearBias(HEADS).widened(query, key, value)[:2], Mask(causal=True))
    scores = query @ key.transpose(-1, -2) / math.sqrt(DIM) + bias()
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(found, wide.weigh(scores, allowed), rtol=1e-9, atol=1e-12)


def test_the_bias_is_there_at_far_positions_and_in_half_precision() -> None:
    query, key, value = heads()
    wide = [each.double() for each in LinearBias(HEADS).widened(query, key, value, first=5_000)]
    torch.testing.assert_close(
        wide[0] @ wide[1].transpose(-1, -2) / math.sqrt(DIM + 2),
        query @ key.transpose(-1, -2) / math.sqrt(DIM) + bias(), rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    half = LinearBias(HEADS).widened(*(each.bfloat16() for each in heads()))
    assert {each.dtype for each in half} == {torch.float32}


def keeps_its_output(variant: str) -> bool | None:
    """Whether a change of basis, queries times M and keys times M's inverse transposed, changes no output: all products
    stay what they were. None where the variant has no such shape."""
    torch.manual_seed(0)
    shape = AttentionShape(heads=2, head_dim=8, max_length=24, causal=True, padding=False, dtype="float64")
    try:
        module = build(variant, shape).double().eval()
    except Unsupported:
        return None
    if module.supports(shape):
        return None
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():  # some start as the identity
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64, generator=random)
    query, key, value = torch.randn(3, 1, 2, 24, 8, dtype=torch.float64, generator=random)
    basis = torch.eye(8, dtype=torch.float64) + 0.3 * torch.randn(8, 8, dtype=torch.float64, generator=random)
    hidden = torch.randn(1, 24, 16, dtype=torch.float64, generator=random)
    plain = module(query, key, value, Mask(causal=True), hidden)
    moved = module(query @ basis, key @ torch.linalg.inv(basis).T, value, Mask(causal=True), hidden)
    return torch.allclose(plain, moved, atol=1e-8)


UNLIKE = {
    # no factor 1 / sqrt(d) that could be made good
    "dot", "ssd", "log-linear",
    # a norm of the output behind it, which zeros of two more dimensions would change
    "retention",
    # maps of positions, or within one block, and projections of its own see no products
    "synthesizer", "sinkhorn", "mla",
}  # fmt: skip
"""They keep their output where products of queries and keys stay as they are, and yet take no bias by them."""

OWN = [entry.name for entry in VARIANTS.entries() if entry.origin.startswith("attnbench ")]


@pytest.mark.parametrize("variant", [*OWN, "asentmax[form=head]", "local[relative=true]"])
def test_those_variants_take_a_bias_that_weigh_by_products_alone(variant: str) -> None:
    found = keeps_its_output(variant)
    if found is None:
        return
    shape = AttentionShape(heads=2, head_dim=8, max_length=24, causal=True, padding=False)
    assert build(variant, shape).maps_products == (found and variant not in UNLIKE)


def test_a_variant_that_weighs_by_something_else_is_unsupported() -> None:
    recipe = LanguageRecipe(positions="alibi", stride=12, **SHAPE)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="weighs by something else"):
        Decoder(Language(), recipe, lambda shape: build("linear", shape), 0)


# ---------------------------------------------------------------- models


def decoder(variant: str = "softmax", **recipe: object) -> Decoder:
    settings = LanguageRecipe(**{**SHAPE, "stride": 12, **recipe})  # type: ignore[arg-type]
    model = Decoder(Language(), settings, lambda shape: build(variant, shape), 0)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 257, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", [
    {"positions": "rope"}, {"positions": "alibi"}, {"positions": "none", "convolution": 2},
    {"positions": "rope", "convolution": 4, "query_key_scale": 0.3}, {"positions": "learned", "convolution": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("variant", ["softmax", "entmax15", "local[query_block=4,flange=4]"])
@torch.no_grad()
def test_token_by_token_gives_what_the_whole_sequence_gives(variant: str, options: dict[str, object]) -> None:
    model, tokens = decoder(variant, **options), ids(2, 24)
    whole, state = model(tokens), model.begin()
    for at in range(24):
        logits, state = model.step(tokens[:, at], state)
        torch.testing.assert_close(logits, whole[:, at], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["rope", "alibi"])
@torch.no_grad()
def test_order_matters_where_there_are_positions(positions: str) -> None:
    tokens = ids(1, 12)
    swapped = tokens[:, [1, 0, *range(2, 12)]]
    for kind, differs in ((positions, True), ("none", False)):
        model = decoder(positions=kind, layers=1)
        change = (model(tokens) - model(swapped))[:, -1].abs().max()
        assert (change > 1e-3) == differs


@torch.no_grad()
def test_a_decoder_that_brings_positions_gets_no_rotation() -> None:
    without, rope = (decoder("relative", positions=kind) for kind in ("none", "rope"))
    torch.testing.assert_close(without(ids(1, 12)), rope(ids(1, 12)))
    assert not rope.blocks[0].attention.rotates


@torch.no_grad()
def test_the_convolution_is_the_sum_over_the_tokens_before() -> None:
    torch.manual_seed(0)
    layer, x = EmbeddingConvolution(5, 3), torch.randn(2, 7, 5)
    weight = layer.convolution.weight  # (out, in, kernel - 1), the last for the token before
    expected = x.clone()
    for t in range(7):
        for u in (1, 2):
            if t - u >= 0:
                expected[:, t] += x[:, t - u] @ weight[:, :, 2 - u].T
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("options", [{"positions": "rope"}, {"convolution": 4}], ids=str)
@torch.no_grad()
def test_padding_changes_no_logit_of_an_encoder(options: dict[str, object], pooling: str) -> None:
    recipe = Recipe(**{**SHAPE, "dropout": 0.0, "pooling": pooling, **options})  # type: ignore[arg-type]
    model = Encoder(Classification(vocabulary=257, classes=3), recipe, lambda shape: build("softmax", shape), 0).eval()
    tokens, lengths = ids(2, 1, 12), torch.tensor([[5], [12]])
    tokens[0, 0, 5:] = 0
    torch.testing.assert_close(model(tokens, lengths)[:1], model(tokens[:1, :, :5], lengths[:1]), rtol=1e-5, atol=1e-6)


def test_initial_queries_and_keys_are_scaled_and_values_are_not() -> None:
    plain, small = (
        Decoder(Language(), LanguageRecipe(stride=12, query_key_scale=factor, **SHAPE),  # type: ignore[arg-type]
                lambda shape: build("softmax", shape), 0).blocks[0].attention.project_in.weight
        for factor in (1.0, 0.3)
    )  # fmt: skip
    torch.testing.assert_close(small[:48], 0.3 * plain[:48])
    torch.testing.assert_close(small[48:], plain[48:])


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    cases = [
        (Classification(vocabulary=9, classes=2), Recipe(positions="alibi"), "for causal models"),
        (Language(), LanguageRecipe(positions="rope", width=12, heads=4), "even head_dim"),
        (Classification(vocabulary=9, classes=2), Recipe(convolution=1), "sees no token before"),
    ]
    for problem, recipe, reason in cases:
        with pytest.raises(SelectionError, match=reason):
            attention_shape(problem, recipe, 0, "cpu")
