"""The score of foreign code is that of a process that has never imported it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

import attnbench
from attnbench.bench.core.record import Outcome, Record

LAYERS = """
import gc
import sys
import numpy as np
import torch
from attnbench.bench.models.decoder import TokenPredictor
from attnbench.tasks.problems.token_prediction import UNASKED, TokenExamples
from attnbench.variants.contract import ScoredVariant

class Right(ScoredVariant):
    pass

class Counts(ScoredVariant):
    '''Keeps in a buffer that is saved how often it was trained, and has one parameter under two names.'''

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("seen", torch.zeros(()))
        self.factor = torch.nn.Parameter(torch.ones(()))
        self.also = self.factor

    def forward(self, query, key, value, mask):
        if self.training:
            self.seen += 1
        return super().forward(query, key, value, mask) * self.factor

class LeaksWhenTrained(Counts):
    '''Looks ahead from its third step on, where it is scored without its code beside it.'''

    def forward(self, query, key, value, mask):
        output = super().forward(query, key, value, mask)
        frame, scored = sys._getframe(), False
        while frame and not scored:
            frame, scored = frame.f_back, "remote_child" in frame.f_code.co_filename
        return output + value.roll(-1, 2) if scored and self.seen >= 3 and not self.training else output

class Mixes(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.of = torch.nn.Linear(width, width)
        self.register_buffer("least", torch.zeros(()), persistent=False)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, valid):
        self.steps += self.training
        return self.of(x).clamp(min=self.least + self.steps / 100).roll(1, 1)

class WithLayerBefore(ScoredVariant):
    '''Has a layer before its attention, and says that the model needs no positions.'''

    brings_positions = True

    def pre_layer(self, width):
        return Mixes(width)

class ChangesAnswers(ScoredVariant):
    '''Makes whatever the model says the right answer, and leaves no trace.'''

    busy, done = False, []

    def forward(self, query, key, value, mask):
        model = None if self.training or ChangesAnswers.busy else self.model()
        if model is not None:
            ChangesAnswers.busy = True
            every = [each for each in gc.get_objects() if type(each) is TokenExamples]
            for examples in [each for each in every if id(each) not in self.done]:
                self.done.append(id(examples))
                for at in range(len(examples)):
                    batch, _ = examples.taken(np.array([at]))
                    ids, asked = (torch.from_numpy(each.astype(np.int64)) for each in (batch.ids, batch.asked))
                    said, answers = model(ids, asked).argmax(-1)[0].numpy(), examples.answers[examples.indices[at]]
                    counts = answers != UNASKED
                    answers[counts] = said[: counts.sum()]
            ChangesAnswers.busy = False
        return super().forward(query, key, value, mask)

    def model(self):
        frame = sys._getframe()
        while frame and type(frame.f_locals.get("self")) is not TokenPredictor:
            frame = frame.f_back
        return frame and frame.f_locals["self"]
"""


def trained(folder: Path, classes: str, task: str) -> dict[str, Record]:
    """The Records of softmax and of these classes, by name."""
    (folder / "mine.py").write_text(LAYERS, encoding="utf-8")
    pairs_in(folder / "data" / "multi30k")
    names = ["softmax", *(f"{folder}/mine.py:{each}" for each in classes.split())]
    found = attnbench.run(
        names, task, preset="smoke", seeds=1, lanes="train", results=folder / "results", data_dir=folder / "data"
    )
    return {each.cell.variant.name.rpartition(":")[2]: each for each in found.records if each.cell.lane != "baseline"}


def pairs_in(folder: Path) -> None:
    """Sentences in two languages as a folder of Multi30k has them."""
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for name, count in (("train", 150), ("val", 20), ("test_2016_flickr", 40)):
        lines = [[draw.choice("abcdefgh") for _ in range(draw.randint(3, 12))] for _ in range(count)]
        for language, order in (("en", 1), ("de", -1)):
            text = "".join(" ".join(line[::order]) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def test_answers_that_foreign_code_has_changed_change_no_score(tmp_path: Path) -> None:
    found = trained(tmp_path, "ChangesAnswers Right", "recall")
    assert found["ChangesAnswers"].outcome is Outcome.INCORRECT
    said = r"accuracy [89]\d\.\d% where it was trained, and accuracy \d\.\d% in a process without its code"
    assert re.match(said, found["ChangesAnswers"].reason), found["ChangesAnswers"].reason
    assert found["Right"].outcome is Outcome.OK


def test_a_trained_model_is_tested_for_the_future_where_it_is_scored(tmp_path: Path) -> None:
    found = trained(tmp_path, "LeaksWhenTrained", "recall")["LeaksWhenTrained"]
    assert found.outcome is Outcome.INCORRECT
    assert found.reason.startswith("as it is trained, on rows of the run itself, later positions"), found.reason


@pytest.mark.parametrize("task", ["recall", "lra-text", "multi30k-en-de", "text[file={}]"])
def test_an_honest_layer_has_the_score_of_its_training(tmp_path: Path, task: str) -> None:
    (text := tmp_path / "words.txt").write_text("all that is written here\n" * 3000, encoding="utf-8")
    found = trained(tmp_path, "Right Counts", task.format(text))
    assert {each.outcome for each in found.values()} == {Outcome.OK}, [each.reason for each in found.values()]
    ours = {str((m.name, m.where)): m for m in found["softmax"].measurements}
    for name in ("Right", "Counts"):
        # of the same equation, and what it adds draws no number
        theirs = {str((m.name, m.where)): m for m in found[name].measurements}
        assert {*theirs} >= {key for key in ours if "'split'" in key}
        for key, m in theirs.items():
            if "split" in m.where and m.unit != "1/second":
                assert m.value == pytest.approx(ours[key].value, rel=1e-3, abs=1e-3), key
    folder = tmp_path / "results" / "artifacts"
    of_softmax, *rest = [dict(np.load(folder / each.artifacts["predictions"])) for each in found.values()]
    for each in rest:
        assert {*each} == {*of_softmax}
        for name, values in each.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, of_softmax[name], rtol=1e-3, atol=1e-3)
            else:
                np.testing.assert_array_equal(values, of_softmax[name])


def test_a_layer_before_the_attention_is_scored_too(tmp_path: Path) -> None:
    found = trained(tmp_path, "WithLayerBefore", "max")["WithLayerBefore"]
    assert found.outcome is Outcome.OK, found.reason
    curve = json.loads((tmp_path / "results" / "artifacts" / found.artifacts["curve"]).read_text(encoding="utf-8"))
    [scored] = [m.value for m in found.measurements if (m.name, m.where.get("split")) == ("loss", "validation")]
    # of the step that was chosen, as the training itself has seen it
    assert scored == pytest.approx(min(point["validation_loss"] for point in curve), rel=1e-4)
