"""Inspection: whose weights are shown, beside which tokens, and as what picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Machine, Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.train.objectives.language_modeling import LanguageModelingObjective
from attnbench.bench.wings.inspect.inspection import MOST_TOKENS, inspect_example, inspect_sentence, numbered, view
from attnbench.bench.wings.inspect.load_model import LoadedModel
from attnbench.bench.wings.translation.attention import attention_weights
from attnbench.bench.wings.translation.objective import TranslationObjective
from attnbench.tasks.contract import Classification, Dataset
from attnbench.tasks.data.prepared import pack
from attnbench.tasks.language_modeling.packing import texts
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.tasks.translation.problem import EvaluationPairs, SentencePairs, Translation, TranslationRecipe
from attnbench.variants import build

CPU = torch.device("cpu")
RECIPE = TranslationRecipe(layers=2, width=16, heads=2, feed_forward=32, vocabulary=30, length=24, beam=2)
SOURCE, TARGET = np.array([5, 6, 7, 3], dtype=np.uint16), np.array([8, 9, 3], dtype=np.uint16)


def named(ids):
    return [f"w{int(each)}" for each in ids]


def dataset(source=SOURCE, target=TARGET):
    split = pack([source, target], [0], towers=2)
    test = EvaluationPairs(
        split=split,
        indices=np.arange(1),
        sources=("w5 w6 w7",),
        references=("w8 w9",),
        sets=("news",),
        language="en",
        decode=lambda ids: " ".join(named(ids)),
        pieces=named,
        encode=lambda lines: [np.array([*(int(word[1:]) for word in line.split()), 3]) for line in lines],
    )
    pairs = SentencePairs(split=split, indices=np.arange(1))
    provenance = Provenance(source="toy", fidelity="regenerated")
    return Dataset(train=pairs, validation=pairs, test=test, provenance=provenance)


class OfProblem:
    """A task, as far as its problem goes."""

    def __init__(self, problem):
        self.problem = lambda: problem


def trained(variant="rela"):
    problem = Translation(vocabulary=2**16)
    kind = TranslationObjective(problem, RECIPE)
    cell = Cell(variant=Spec(variant), task=Spec("toy"), preset=Spec("quick"))
    machine = Machine(id="m", system="", processor="", cores=1, threads=1, memory_bytes=1)
    return LoadedModel(
        record=Record(cell=cell, outcome=Outcome.OK, machine=machine),
        task=OfProblem(problem),
        recipe=RECIPE,
        model=kind.model(lambda shape: build(variant, shape), 0),
        is_current=True,
    )


def test_each_attention_is_shown_between_the_tokens_that_it_is_between():
    model = trained()
    shown = inspect_example(model, dataset(), 0, CPU)
    assert shown.text == ("w5 w6 w7", "w8 w9")
    by_place = {(each.attention, each.layer): each for each in shown.views}
    assert sorted(by_place) == [(kind, layer) for kind in ("cross", "decoder", "encoder") for layer in (0, 1)]
    source, target = ("1 w5", "2 w6", "3 w7", "4 w3"), ("1 w8", "2 w9", "3 w3")
    assert (by_place["encoder", 0].queries, by_place["encoder", 0].keys) == (source, source)
    assert (by_place["cross", 1].queries, by_place["cross", 1].keys) == (target, source)
    # the decoder reads what it wrote one step before
    assert by_place["decoder", 0].keys == ("1 w2", "2 w8", "3 w9")
    weights = attention_weights(model.model, SOURCE, TARGET, CPU)
    np.testing.assert_array_equal(by_place["cross", 1].weights, weights["cross"][1])


def test_a_pair_is_cut_to_what_the_model_reads():
    long = np.array([*[5] * 30, 3], dtype=np.uint16)
    for source, target in ((long, TARGET), (SOURCE, long)):
        shown = inspect_example(trained(), dataset(source, target), 0, CPU)
        cross = next(each for each in shown.views if each.attention == "cross")
        expected = min(len(target), RECIPE.length), min(len(source), RECIPE.length)
        assert (len(cross.queries), len(cross.keys)) == cross.weights.shape[1:] == expected


def test_a_sentence_of_ones_own_is_translated_and_shown():
    shown = inspect_sentence(trained(), dataset(), "w5 w5", CPU)
    assert shown.text[0] == "w5 w5" and shown.views
    assert len(shown.views[0].keys) == 3
    outputs = next(each for each in shown.views if each.attention == "decoder").queries
    assert outputs == numbered([*shown.text[1].split(), "w3"])[:MOST_TOKENS]


def test_an_example_that_is_not_there_is_refused():
    with pytest.raises(SelectionError, match="from 0 to 0, got 1"):
        inspect_example(trained(), dataset(), 1, CPU)


def test_no_more_tokens_are_shown_than_can_be_read():
    long = tuple(str(place) for place in range(100))
    shown = view("cross", 0, np.ones((2, 100, 90)), long, long[:90])
    assert shown.weights.shape == (2, MOST_TOKENS, MOST_TOKENS) == (2, len(shown.queries), len(shown.keys))


def test_a_classifier_takes_no_sentence_of_ones_own():
    classifier = replace(trained(), task=OfProblem(Classification(vocabulary=30, classes=2)))
    with pytest.raises(SelectionError, match="only translation and language modelling"):
        inspect_sentence(classifier, dataset(), "w5", CPU)
    with pytest.raises(SelectionError, match="at least one byte"):
        inspect_sentence(trained(), dataset(), "", CPU)


def reader(variant="softmax"):
    recipe = LanguageRecipe(layers=2, width=16, heads=2, feed_forward=32, length=12, stride=6)
    windows = Windows.over(texts(["Ruh,\nü bald".encode() * 3]), 12, 6)
    model = LanguageModelingObjective(Language(), recipe).model(lambda shape: build(variant, shape), 0)
    provenance = Provenance(source="toy", fidelity="synthetic")
    data = Dataset(train=windows, validation=windows, test=windows, provenance=provenance)
    return replace(trained(), task=OfProblem(Language()), recipe=recipe, model=model), data


def test_a_text_is_shown_by_its_letters_and_looks_at_none_that_come_later():
    shown = inspect_example(*reader(), 0, CPU)
    assert shown.text == ("Ruh,\nü bald",)
    assert shown.views[0].keys[4:9] == ("5 ↵", "6 C3", "7 BC", "8 ␣", "9 b") and len(shown.views) == 2
    assert shown.views[1].queries == shown.views[1].keys and (np.triu(shown.views[1].weights, 1) == 0).all()


def test_a_text_of_ones_own_is_gone_on_with():
    model, data = reader()
    shown = inspect_sentence(model, data, "Ruh", CPU)
    ids = [ord(letter) + 1 for letter in "Ruh"]
    assert len(shown.views[0].keys) == 3 and shown.text[0] == "Ruh"
    with torch.no_grad():
        first = int(model.model(torch.tensor([ids]))[0, -1].argmax())
    assert shown.text[1].encode(errors="replace")[:1] in (bytes([first]), "\ufffd".encode()[:1])
    assert len(inspect_sentence(model, data, "Ruh" * 10, CPU).views[0].keys) == 12, "as far as the context goes"


def test_a_text_that_is_no_utf_8_is_refused():
    # what Python makes of the byte FF on the command line
    for model, data in ((trained(), dataset()), reader()):
        with pytest.raises(SelectionError, match=r"in UTF-8, got 'w5 .udcff'"):
            inspect_sentence(model, data, "w5 \udcff", CPU)


def test_the_picture_has_every_weight_that_is_not_zero_at_its_tokens():
    pytest.importorskip("altair")
    from attnbench.bench.wings.inspect.attention_maps import chart

    heads = [[[0.0, 0.5], [0.25, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    drawn = chart("title", ["1 a", "2 b"], ["1 x", "2 y"], heads).to_dict()
    panels = drawn["hconcat"]
    assert [drawn["datasets"][panel["data"]["name"]] for panel in panels] == [
        [{"query": "1 a", "key": "2 y", "weight": 0.5}, {"query": "2 b", "key": "1 x", "weight": 0.25}],
        [{"query": "1 a", "key": "1 x", "weight": 1.0}],
    ]
    assert panels[0]["encoding"]["x"]["scale"]["domain"] == ["1 x", "2 y"]
