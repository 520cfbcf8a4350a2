"""A sentence pair on a page: whose weights are shown, beside which tokens."""

import numpy as np
import torch

from attnbench.bench.measure.attention.view import MOST_TOKENS, numbered
from attnbench.bench.wings.translation.attention import attention_weights
from attnbench.bench.wings.translation.objective import TranslationObjective
from attnbench.tasks.data.prepared import pack
from attnbench.tasks.translation.problem import EvaluationPairs, Translation, TranslationRecipe
from attnbench.variants import build

CPU = torch.device("cpu")
RECIPE = TranslationRecipe(layers=2, width=16, heads=2, feed_forward=32, vocabulary=30, length=24, beam=2)
SOURCE, TARGET = np.array([5, 6, 7, 3], dtype=np.uint16), np.array([8, 9, 3], dtype=np.uint16)
OBJECTIVE = TranslationObjective(Translation(vocabulary=2**16), RECIPE)
MODEL = OBJECTIVE.model(lambda shape: build("rela", shape), 0)


def named(ids):
    return [f"w{int(each)}" for each in ids]


def pair(source=SOURCE, target=TARGET):
    return EvaluationPairs(
        split=pack([source, target], [0], towers=2),
        indices=np.arange(1),
        sources=("w5 w6 w7",),
        references=("w8 w9",),
        sets=("news",),
        language="en",
        decode=lambda ids: " ".join(named(ids)),
        pieces=named,
        encode=lambda lines: [np.array([*(int(word[1:]) for word in line.split()), 3]) for line in lines],
    )


def test_each_attention_is_shown_between_the_tokens_that_it_is_between():
    text, views = OBJECTIVE.inspect_example(MODEL, pair(), 0, CPU)
    assert text == ("w5 w6 w7", "w8 w9")
    by_place = {(each.attention, each.layer): each for each in views}
    assert sorted(by_place) == [(kind, layer) for kind in ("cross", "decoder", "encoder") for layer in (0, 1)]
    source, target = ("1 w5", "2 w6", "3 w7", "4 w3"), ("1 w8", "2 w9", "3 w3")
    assert (by_place["encoder", 0].queries, by_place["encoder", 0].keys) == (source, source)
    assert (by_place["cross", 1].queries, by_place["cross", 1].keys) == (target, source)
    # the decoder reads what it wrote one step before
    assert by_place["decoder", 0].keys == ("1 w2", "2 w8", "3 w9")
    weights = attention_weights(MODEL, SOURCE, TARGET, CPU)
    np.testing.assert_array_equal(by_place["cross", 1].weights, weights["cross"][1])


def test_a_pair_is_cut_to_what_the_model_reads():
    long = np.array([*[5] * 30, 3], dtype=np.uint16)
    for source, target in ((long, TARGET), (SOURCE, long)):
        _, views = OBJECTIVE.inspect_example(MODEL, pair(source, target), 0, CPU)
        cross = next(each for each in views if each.attention == "cross")
        expected = min(len(target), RECIPE.length), min(len(source), RECIPE.length)
        assert (len(cross.queries), len(cross.keys)) == cross.weights.shape[1:] == expected


def test_a_sentence_of_ones_own_is_translated_and_shown():
    text, views = OBJECTIVE.inspect_sentence(MODEL, pair(), "w5 w5", CPU)
    assert text[0] == "w5 w5" and len(views[0].keys) == 3
    outputs = next(each for each in views if each.attention == "decoder").queries
    assert outputs == numbered([*text[1].split(), "w3"])[:MOST_TOKENS]
