"""The model that translates: one output whether at once or token by token, whatever is padded, whatever the variant."""

from dataclasses import replace

import pytest
import torch

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.memory import reordered
from attnbench.bench.wings.translation.beam_search import beam_search
from attnbench.bench.wings.translation.decoding import can_cache, limits, search_step, start, translate, uncached
from attnbench.bench.wings.translation.model import Transformer
from attnbench.tasks.translation.problem import KINDS, Translation, TranslationRecipe

TINY = TranslationRecipe(
    layers=2, width=16, heads=2, feed_forward=32, vocabulary=24, length=40, dropout=0.0, attention_dropout=0.0
)
LENGTHS = [7, 3, 5]


def build(spec):
    def make(shape):
        variant = VARIANTS.build(Spec.parse(spec), shape)
        reason = variant.supports(shape)
        if reason:
            raise Unsupported(reason)
        return variant

    return make


def model(spec="softmax", recipe=TINY, where=KINDS, seed=0):
    made = Transformer(Translation(vocabulary=2**16, where=where), recipe, build(spec), seed)
    return made.eval()


def batch(lengths=LENGTHS, targets=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 24, (len(lengths), 1, max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        source[row, :, length:] = 0
    return source, torch.tensor(lengths)[:, None], torch.randint(4, 24, (len(lengths), targets), generator=generator)


# every variant that decodes and can be in all three places, and some that can be in two
EVERYWHERE = [
    "softmax", "rela", "sparsemax", "entmax15", "entmax", "topk[k=2]", "relu-squared", "sigmoid", "scalable-softmax",
    "dot", "general", "additive", "linear", "performer",
]  # fmt: skip


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_sequence(spec):
    translator = model(spec).double()
    source, lengths, target = batch()
    with torch.inference_mode():
        memory = translator.encode(source, lengths)
        inputs = torch.cat([torch.full((3, 1), 2), target[:, :-1]], dim=1)
        whole = translator.decode(inputs, memory).log_softmax(-1)
        assert can_cache(translator)
        state, step = start(translator, memory), search_step(translator)
        for place in range(inputs.shape[1]):
            found, state = step(inputs[:, place], state)
            wanted = whole[:, place].clone()
            wanted[:, [0, 2]] = -torch.inf
            # a step gives logarithms of chances in float32, here no larger than 16
            rounding = 16 * torch.finfo(torch.float32).eps
            torch.testing.assert_close(found.double(), wanted.log_softmax(-1), atol=rounding, rtol=0)


@pytest.mark.parametrize("spec", ["softmax", "rela", "linear", "additive-lm"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_beam_search_with_a_cache_gives_the_output_of_beam_search_without(spec, norm):
    where = ("decoder",) if spec == "additive-lm" else KINDS
    translator = model(spec, replace(TINY, norm=norm), where)
    source, lengths, _ = batch()
    with torch.inference_mode():
        memory = translator.encode(source, lengths)
        most = limits(translator, lengths).clamp(max=12)
        for beam in (1, 4):
            found = [
                beam_search(search_step(translator), state, most, begin=2, end=3, beam=beam, alpha=0.6)
                for state in (start(translator, memory), uncached(memory))
            ]
            for one, other in zip(*found, strict=True):
                assert one.tokens == other.tokens
                assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(("spec", "cached"), [("relative", False), ("cosformer", False), ("rela", True)])
def test_cross_attention_that_depends_on_the_place_of_a_query_is_computed_anew(spec, cached):
    assert can_cache(model(spec, where=("cross",))) is cached
    assert can_cache(model(spec, where=("encoder", "decoder")))


@pytest.mark.parametrize(
    ("spec", "positions"),
    [("relative", "none"), ("local[flange=2,query_block=2]", "none"), ("additive-lm", "none"), ("softmax", "rope")],
)
def test_positions_and_windows_decode_with_a_cache_in_the_decoder(spec, positions):
    translator = model(spec, replace(TINY, positions=positions), where=("decoder",)).double()
    source, lengths, target = batch(targets=9)
    with torch.inference_mode():
        memory = translator.encode(source, lengths)
        assert can_cache(translator)
        found = []
        for state in (start(translator, memory), uncached(memory)):
            step = search_step(translator)
            for place in range(target.shape[1]):
                logits, state = step(target[:, place], state)
            found.append(logits)
    torch.testing.assert_close(*found, atol=1e-10, rtol=1e-10)


def test_a_variant_that_cannot_decode_is_computed_anew_for_each_token():
    translator = model("reformer", where=("decoder",))
    assert not can_cache(translator)
    source, lengths, _ = batch()
    with torch.inference_mode():
        memory = translator.encode(source, lengths)
        assert type(start(translator, memory)) is type(uncached(memory))


@pytest.mark.parametrize("spec", ["softmax", "rela", "entmax15"])
def test_a_sentence_is_translated_the_same_alone_and_beside_longer_ones(spec):
    translator = model(spec)
    source, lengths, _ = batch([4, 11, 2])
    together = translate(translator, source, lengths)
    for row, length in enumerate([4, 11, 2]):
        alone = translate(translator, source[row : row + 1, :, :length], lengths[row : row + 1])
        assert alone[0].tokens == together[row].tokens


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_padding_of_sources_and_targets_changes_no_loss(norm, positions):
    translator = model("softmax", replace(TINY, norm=norm, positions=positions))
    source, lengths, target = batch([5, 5, 5])
    padded = torch.nn.functional.pad(source, (0, 6)), lengths, torch.nn.functional.pad(target, (0, 4))
    plain = translator.loss((source, lengths, target))
    torch.testing.assert_close(plain, translator.loss(padded))


def test_the_loss_is_the_smoothed_cross_entropy_of_the_tokens_that_are_there():
    translator = model(recipe=replace(TINY, label_smoothing=0.1))
    source, lengths, target = batch()
    target[1, 4:] = 0
    chances = translator(source, lengths, target).log_softmax(-1)
    real = target != 0
    right = chances.gather(-1, target[..., None])[..., 0][real]
    smoothed = -(0.9 * right + 0.1 * chances.mean(-1)[real]).mean()
    torch.testing.assert_close(translator.loss((source, lengths, target)), -right.mean())
    translator.train()
    torch.testing.assert_close(translator.loss((source, lengths, target)), smoothed)


def test_transformer_base_has_the_parameters_that_its_sizes_say():
    recipe = TranslationRecipe(
        layers=6, width=512, heads=8, feed_forward=2048, norm="post", vocabulary=1_000, length=64
    )
    square = 512 * 512 + 512
    feed_forward = 512 * 2048 * 2 + 2048 + 512
    layers = 6 * (4 * square + feed_forward + 2 * 1024) + 6 * (8 * square + feed_forward + 3 * 1024)
    plain, rela = (model(spec, recipe).parameter_counts() for spec in ("softmax", "rela"))
    assert plain == (layers + 1_000 * 512, 0)
    # a scale and a gate for each of 18 attentions: the 0.03 M of ReLA's table
    assert rela == (plain[0] + 18_432, 18_432)


def test_where_puts_the_variant_in_some_attentions_and_softmax_in_the_others():
    translator = model("rela", where=("cross",))
    names = {kind: {type(variant).__name__ for variant in each} for kind, each in translator.kinds().items()}
    assert names["cross"] == {"ReLA"} and names["encoder"] == names["decoder"] == {"Softmax"}
    assert len(translator.variants) == 2


def test_models_of_one_seed_share_all_that_the_variants_do_not_bring():
    one, other = (dict(model(spec).named_parameters()) for spec in ("softmax", "rela"))
    assert set(one) < set(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], dict(model(seed=1).named_parameters())["embedding.weight"])


def test_positions_and_convolutions_that_cannot_be_are_refused():
    with pytest.raises(SelectionError, match="for causal models"):
        model(recipe=replace(TINY, positions="alibi"))
    with pytest.raises(SelectionError, match="has no convolution"):
        TINY.with_overrides(Spec.parse("quick[convolution=2]"))


@pytest.mark.parametrize(("model_of", "factor"), [(build("gate+softmax"), 1), (build("matched+gate+softmax"), 0)])
def test_matched_parameters_give_up_what_a_wrapper_adds(model_of, factor):
    plain, _ = model().parameter_counts()
    whole, added = Transformer(Translation(vocabulary=2**16), TINY, model_of, 0).parameter_counts()
    # two layers a side, and cross attention in two of them, of which each gate is a square map
    assert added == 6 * 16 * 16 and abs(whole - plain - factor * added) <= 4 * 33 / 2


@pytest.mark.parametrize(
    ("spec", "where", "said"),
    [
        ("nystrom", KINDS, "decoder attention: it has no causal form"),
        ("nystrom", ("cross",), "cross attention: queries and keys must be one sequence"),
        ("additive-lm", ("cross",), "cross attention: "),
    ],
)
def test_a_variant_that_cannot_be_used_somewhere_is_refused_with_the_place_and_the_reason(spec, where, said):
    with pytest.raises(Unsupported, match=said):
        model(spec, where=where)


def test_a_state_is_reordered_wherever_its_tensors_are():
    rows = torch.tensor([2, 2, 0])
    state = {"a": [torch.arange(3), (torch.arange(6).view(3, 2), 5)], "b": None}
    found = reordered(state, rows)
    assert found["a"][0].tolist() == [2, 2, 0]
    assert found["a"][1][0].tolist() == [[4, 5], [4, 5], [0, 1]] and found["a"][1][1] == 5 and found["b"] is None
