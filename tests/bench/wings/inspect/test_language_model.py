"""A trained language model: loaded with its own data only, and the text that it writes."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from language_cells import POEM, context_with_poem, done
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.errors import DataError, SelectionError, StoreError
from attnbench.bench.core.record import Outcome
from attnbench.bench.models.decoder import Decoder
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.store.trained import find_trained
from attnbench.bench.train.objectives.language_modeling import LanguageModelingObjective
from attnbench.bench.wings.inspect.generate import can_cache, sample
from attnbench.bench.wings.inspect.load_model import dataset_of, load
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.variants import build

CPU = torch.device("cpu")


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    return context_with_poem(tmp_path, monkeypatch)


def decoder(variant: str) -> Decoder:
    torch.manual_seed(7)
    recipe = LanguageRecipe(layers=3, width=16, heads=2, feed_forward=32, length=24, stride=12)
    model = Decoder(Language(), recipe, lambda shape: build(variant, shape), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.parametrize("variant", ["softmax", "additive-lm[kernel_size=3]", "local[query_block=4,flange=4]"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampling_with_a_cache_writes_the_same_text_also_beyond_the_context(variant: str, temperature: float) -> None:
    model, prompt = decoder(variant), [70, 71, 72]
    kept, read_again = (
        list(sample(model, prompt, 60, temperature=temperature, seed=3, cached=cached)) for cached in (True, False)
    )
    assert kept == read_again and len(kept) == 60 and min(kept) >= 1 and max(kept) <= 256
    if temperature:
        assert kept != list(sample(model, prompt, 60, temperature=temperature, seed=4))


def test_a_variant_that_selects_by_the_whole_context_is_read_anew() -> None:
    model = decoder("local-routing")
    assert not can_cache(model)
    assert len(list(sample(model, [70], 30, temperature=1.0, cached=False))) == 30


@pytest.mark.slow
def test_a_cell_becomes_a_record_and_its_model_writes(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    record = done(context, "softmax")
    assert record.outcome is Outcome.OK, record.reason
    tested = record.first("bits_per_character", split="test")
    assert tested is not None and 0 < tested.value < 8.5
    assert record.data is not None and tested.where["examples"] == record.data.counts["test"] > 1
    with np.load(io.BytesIO(context.store.artifact(record.artifacts["predictions"]))) as kept:
        assert kept["statistics"].shape == (tested.where["examples"], 2)
    found = load(context.store, find_trained(context.store, record.key[:5]), CPU)
    objective = LanguageModelingObjective(found.task.problem(), found.recipe)
    test = found.task.load(context.place, found.recipe, 0, "validation").test
    assert objective.evaluate(found.model, test, CPU).value == tested.value
    options = ["--prompt", "Ruh", "--count", "40", "--results", str(context.store.root), "--device", "cpu"]
    options += ["--data-dir", str(context.place.root)]
    runs = [CliRunner().invoke(app, ["sample", record.key, *options]) for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0]
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.startswith("Ruh")
    context.store.checkpoint(record.cell, record.digest).unlink()
    with pytest.raises(StoreError, match="not at hand"):
        load(context.store, record, CPU)


def test_subwords_are_judged_by_the_characters_and_words_of_the_same_text(context: WorkerContext) -> None:
    pytest.importorskip("sentencepiece", reason="needs the extra `translation`")
    task = "gutenberg-char[subwords=512]"
    record, pairs = done(context, "softmax", task=task), done(context, "bigram", "baseline", task)
    assert record.outcome is Outcome.OK, record.reason
    bits, perplexity = (record.first(name, split="test") for name in ("bits_per_character", "perplexity"))
    assert bits is not None and perplexity is not None and pairs.first("bits_per_character", split="test") is not None
    found = load(context.store, record, CPU)
    assert isinstance(found.model, Decoder) and found.model.embedding.weight.shape[0] == 512
    test = found.task.load(context.place, found.recipe, 0, "validation").test
    assert isinstance(test, Windows)
    read = LanguageModelingObjective(found.task.problem(), found.recipe).evaluate(found.model, test, CPU)
    text = test.vocabulary.decode(test.split.tokens.tolist()).decode()
    given = test.vocabulary.decode(test.split.tokens[:1].tolist()).decode()
    assert read.characters.sum() == len(text) - len(given) > read.tokens.sum()
    begun = len(text.split()) + text.count("\n") - len(given.split()) - given.count("\n")
    # a word that the given token began is not begun again
    assert read.words.sum() == begun
    assert perplexity.value == pytest.approx(2 ** (bits.value * read.characters.sum() / read.words.sum()))
    options = ["--prompt", "Ruh", "--count", "20", "--results", str(context.store.root), "--device", "cpu"]
    run = CliRunner().invoke(app, ["sample", record.key, *options, "--data-dir", str(context.place.root)])
    assert run.exit_code == 0 and run.stdout.startswith("Ruh")


def test_a_model_is_not_asked_about_other_data_than_its_own(context: WorkerContext) -> None:
    found = load(context.store, done(context, "softmax"), CPU)
    assert dataset_of(found, context.place).provenance == found.record.data
    (context.place.root / "gutenberg" / "poem.txt").write_text(POEM * 21, encoding="utf-8")
    with pytest.raises(DataError, match="trained on, got others for gutenberg/"):
        dataset_of(found, context.place)


def test_a_prompt_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["sample", "any", "--prompt", "\udcff", "--results", str(tmp_path)])
    assert isinstance(run.exception, SelectionError) and "a prompt in UTF-8" in str(run.exception)
