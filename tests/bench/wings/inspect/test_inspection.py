"""Inspection: whose weights are shown, beside which tokens."""

import sys
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_lines import answer

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Machine, Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.attention.view import MOST_TOKENS, view
from attnbench.bench.train.objectives.classification import ClassificationObjective
from attnbench.bench.train.objectives.language_modeling import LanguageModelingObjective
from attnbench.bench.wings.inspect.inspection import inspect_example, inspect_sentence
from attnbench.bench.wings.inspect.load_model import LoadedModel
from attnbench.tasks.contract import Classification, Dataset, Recipe
from attnbench.tasks.language_modeling.packing import texts
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.variants import build

CPU = torch.device("cpu")


def trained(problem, recipe, model):
    cell = Cell(variant=Spec("softmax"), task=Spec("toy"), preset=Spec("quick"))
    machine = Machine(id="m", system="", processor="", cores=1, threads=1, memory_bytes=1)
    return LoadedModel(
        record=Record(cell=cell, outcome=Outcome.OK, machine=machine),
        task=SimpleNamespace(problem=lambda: problem),
        recipe=recipe,
        model=model,
        is_current=True,
    )


def test_no_more_tokens_are_shown_than_can_be_read():
    long = tuple(str(place) for place in range(100))
    shown = view("cross", 0, np.ones((2, 100, 90)), long, long[:90])
    assert shown.weights.shape == (2, MOST_TOKENS, MOST_TOKENS) == (2, len(shown.queries), len(shown.keys))


def test_a_classifier_takes_no_sentence_of_ones_own():
    problem, recipe = Classification(vocabulary=257, classes=2), Recipe(width=16, heads=2, feed_forward=32)
    model = ClassificationObjective(problem, recipe).model(lambda shape: build("softmax", shape), 0)
    _, data = reader()
    with pytest.raises(SelectionError, match="only translation and language modelling"):
        inspect_sentence(trained(problem, recipe, model), data, "w5", CPU)


def test_what_is_not_there_is_refused():
    model, data = reader()
    with pytest.raises(SelectionError, match="at least one byte"):
        inspect_sentence(model, data, "", CPU)
    with pytest.raises(SelectionError, match=f"from 0 to {len(data.test) - 1}, got 99"):
        inspect_example(model, data, 99, CPU)


def reader(variant="softmax"):
    recipe = LanguageRecipe(layers=2, width=16, heads=2, feed_forward=32, length=12, stride=6)
    windows = Windows.over(texts(["Ruh,\nü bald".encode() * 3]), 12, 6)
    model = LanguageModelingObjective(Language(), recipe).model(lambda shape: build(variant, shape), 0)
    provenance = Provenance(source="toy", fidelity="synthetic")
    data = Dataset(train=windows, validation=windows, test=windows, provenance=provenance)
    return trained(Language(), recipe, model), data


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
    with pytest.raises(SelectionError, match=r"in UTF-8, got 'w5 .udcff'"):
        inspect_sentence(*reader(), "w5 \udcff", CPU)


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


COMMITTED = str(Path(__file__).parents[4] / "results")


def test_a_word_that_is_no_key_lists_the_cells_that_have_it():
    # without a key too they are listed
    assert "got '', which fits" in answer(["sample", "--results", COMMITTED]).errors
    found = answer(["sample", "gate+softmax", "--results", COMMITTED])
    first, *cells, more = found.errors.rstrip("\n").split("\n")
    assert found.code == 2 and "gate+softmax" in first
    assert cells and all("gate+softmax on" in cell for cell in cells) and more.strip().startswith("and ")


def test_a_folder_without_records_is_answered_with_the_run_that_is_missing():
    found = answer("sample tinyshakespeare --results nowhere")
    assert found.code == 2 and "`attnbench run --variants rela --task tinyshakespeare`" in found.errors


@pytest.mark.parametrize("command", ["inspect", "sample"])
def test_a_wrong_key_is_answered_without_torch(command):
    if command == "inspect":
        pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")
    code = (
        "import sys\n"
        "from attnbench.bench.cli.app import run_app\n"
        f"sys.argv = ['attnbench', {command!r}, 'nothing', '--results', {COMMITTED!r}]\n"
        "assert run_app() == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    found = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "got 'nothing'" in found.stderr, found.stderr
