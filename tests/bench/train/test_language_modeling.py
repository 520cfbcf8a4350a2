"""Training and judging a model of language: bits against brute force, pairing by seed, resuming, and sampling."""

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_batches import batches
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import DataError, SelectionError, StoreError
from attnbench.bench.core.order import evenly_spaced
from attnbench.bench.core.record import Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.attention.heads import Diversity
from attnbench.bench.measure.attention.recorder import Call, attention_maps
from attnbench.bench.measure.attention.statistics import measure_attention
from attnbench.bench.models.decoder import Decoder
from attnbench.bench.plan.fingerprint import digest_of_cell
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.run.lanes.baseline import baseline_cell
from attnbench.bench.run.lanes.train import train_cell
from attnbench.bench.store.store import Store
from attnbench.bench.store.trained import find_trained
from attnbench.bench.train.objectives.language_modeling import (
    COMPARED,
    ROWS,
    STRETCHES,
    LanguageModelingObjective,
    LanguageModelingResult,
    _compare_heads,
)
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.bench.wings.inspect.load_model import dataset_of, load
from attnbench.tasks.contract import DataPlace, Dataset
from attnbench.tasks.language_modeling.packing import joined, texts
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

CPU = torch.device("cpu")
RECIPE = LanguageRecipe(
    layers=1, width=16, heads=2, feed_forward=32, length=12, stride=5, batch=4, steps=12, warmup=3, evaluate_every=4,
    evaluate_batch=3, learning_rate=1e-2,
)  # fmt: skip
POEM = "Über allen Gipfeln ist Ruh,\nin allen Wipfeln spürest du\nkaum einen Hauch.\n" * 4
TRAINED = ["softmax", "local-routing"]


def toy_data() -> Dataset:
    split, held_out = joined(texts([POEM.encode()[:289]])), texts([POEM[:70].encode(), b"kaum", POEM[30:60].encode()])
    judged = Windows.over(held_out, RECIPE.length, RECIPE.stride)
    return Dataset(
        train=Windows.over(split, RECIPE.length, RECIPE.length),
        validation=judged,
        test=judged,
        provenance=Provenance(source="toy", fidelity="synthetic"),
    )


def trainer(variant: str = "softmax", seed: int = 0, **options: object) -> Trainer:
    objective = objective_for(Language(), RECIPE)
    model = objective.model(lambda shape: build(variant, shape), seed)
    return Trainer(objective, model, toy_data(), task="toy", seed=seed, device=CPU, **options)  # type: ignore[arg-type]


def judged(run: Trainer) -> LanguageModelingResult:
    found = run.objective.evaluate(run.model, run.dataset.test, CPU)
    assert isinstance(found, LanguageModelingResult)
    return found


def test_bits_are_those_of_each_byte_after_its_window() -> None:
    run = trainer()
    found = judged(run)
    windows = run.dataset.test
    assert isinstance(windows, Windows)
    expected, spelt, begun, counted = 0.0, 0, 0, 0
    for text in (windows.split.sequence(at).astype(np.int64) for at in range(len(windows.split))):
        raw = (text - 1).astype(np.uint8).tobytes()
        spelt += len(raw.decode()) - 1
        begun += len(raw.split()) + raw.count(b"\n") - (not raw[:1].isspace())
        ends = sorted({*range(min(12, len(text) - 1), len(text) - 1, 5), len(text) - 1})
        for before, end in zip([0, *ends], ends, strict=False):
            first = max(end - 12, 0)
            with torch.no_grad():
                logits = run.model(torch.from_numpy(text[first:end])[None])[0].double()
            for at in range(before, end):
                expected -= float(logits[at - first].log_softmax(-1)[text[at + 1] - 1]) / math.log(2)
                counted += 1
    assert found.bits.sum() == pytest.approx(expected, rel=1e-5)
    assert found.value == pytest.approx(expected / spelt, rel=1e-5)
    assert found.perplexity == pytest.approx(2 ** (expected / begun), rel=1e-4)
    assert found.loss == pytest.approx(expected * math.log(2) / counted, rel=1e-5)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_by_position_are_the_bits_of_each_byte_after_those_before_it_in_a_longer_window(at_once: int) -> None:
    recipe = replace(RECIPE, longest=40, evaluate_batch=at_once, positions="none")
    objective = objective_for(Language(), recipe)
    model = objective.model(lambda shape: build("softmax", shape), 0)
    assert model.variants[0].shape.max_length == 40
    # texts of 101, of 41 and of 40 bytes: the second window of the first ends with its text, and the last is too short
    held_out = texts([(POEM * 2).encode()[:size] for size in (101, 41, 40)])
    longer = Windows.over(held_out, 40, 40).full(40)
    windows = replace(Windows.over(held_out, 12, 5), longer=longer)
    found = objective.evaluate(model, windows, CPU)
    whole = objective.evaluate(model, replace(windows, longer=None), CPU)
    assert found.value == whole.value
    bits, characters = np.zeros(40), np.zeros(40)
    for begin in (0, 40, 60, 101):
        text = held_out.tokens[begin : begin + 41].astype(np.int64)
        with torch.no_grad():
            lost = -model(torch.from_numpy(text[None, :-1]))[0].double().log_softmax(-1)
        bits += lost[torch.arange(40), torch.from_numpy(text[1:] - 1)].numpy() / math.log(2)
        characters += ((text[1:] - 1) & 0xC0) != 0x80
    first, *others = [m for m in found.measurements("test") if m.name == "bits_per_character"]
    assert first.value == found.value and "position" not in first.where
    parts = {16: slice(0, 16), 32: slice(16, 32), 40: slice(32, 40)}
    assert [m.where for m in others] == [{"split": "test", "position": end, "examples": 4} for end in parts]
    for each, part in zip(others, parts.values(), strict=True):
        assert each.value == pytest.approx(bits[part].sum() / characters[part].sum(), rel=1e-5)


def test_measurements_say_how_they_were_read() -> None:
    found = judged(trainer())
    by_name = {m.name: m for m in found.measurements("test")}
    assert by_name.keys() == {"bits_per_character", "perplexity", "loss"}
    assert by_name["bits_per_character"].where == {"split": "test", "examples": 19, "context": 12, "stride": 5}
    assert by_name["perplexity"].where["token"] == "word"
    rows = found.predictions()["statistics"]
    assert rows.shape == (19, 2) and rows.dtype == np.float64
    assert rows[:, 0].sum() / rows[:, 1].sum() == by_name["bits_per_character"].value


def test_the_heads_of_a_validation_that_is_kept_are_compared_row_by_row() -> None:
    run = trainer()
    windows = run.dataset.validation
    assert isinstance(windows, Windows)
    read = run.objective.evaluate(run.model, windows, CPU)
    [overall, layer] = [m for m in read.measurements("validation") if m.name == "head_diversity"]
    # by hand, over every row of the same windows
    seen: list[torch.Tensor] = []
    [variant] = run.model.variants
    handle = variant.register_forward_hook(lambda v, given, _: seen.append(v.weights(given[0], given[1], given[3])))
    for at in evenly_spaced(len(windows), COMPARED):
        run.model(run.objective.batch(windows, np.array([at]), CPU)[0][:, 0])
    handle.remove()
    of_rows = []
    for weights in seen:
        spread = torch.special.entr(weights[0].detach().double()).sum(-1)
        mixed = torch.special.entr(weights[0].detach().double().mean(0)).sum(-1)
        of_rows += (mixed - spread.mean(0)).tolist()
    assert layer.value == overall.value == pytest.approx(np.mean(of_rows), rel=1e-5) and layer.value > 0
    assert layer.where == {"layer": 0, "rows": 1.0} and overall.where == {} and overall.unit == "nats"


def test_long_windows_are_compared_in_some_of_their_rows() -> None:
    found: list[list[Diversity]] = [[]]
    softmax = build("softmax", AttentionShape(heads=2, head_dim=4, max_length=500, causal=True))
    query, key = torch.randn(2, 1, 2, 500, 4)
    _compare_heads(found, 0, Call(softmax, query, key, Mask(causal=True)))
    assert sum(each.all_rows for each in found[0]) == ROWS * STRETCHES


def test_fewer_bits_are_better() -> None:
    one, two = judged(trainer()), judged(trainer())
    assert one.rank == two.rank
    more = LanguageModelingResult(
        recipe=RECIPE, bits=one.bits * 2, characters=one.characters, words=one.words, tokens=one.tokens
    )
    assert one.rank > more.rank


def test_windows_are_paired_by_seed_moved_by_epoch_and_none_is_left_out() -> None:
    runs = [trainer(variant) for variant in ("softmax", "additive-lm")]
    for one, two in zip(next(batches(runs[0], 5)), next(batches(runs[1], 5)), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(batches(runs[0], 5))[0], next(batches(trainer(seed=1), 5))[0])
    count = len(runs[0].dataset.train)
    assert count % RECIPE.batch == 0, "so that the first epoch is whole batches"
    train = runs[0].dataset.train
    assert isinstance(train, Windows)
    by_move = [sorted(train.moved(by).batch(np.arange(count), 12)[0][:, 0].tolist()) for by in range(12)]
    first, second = (
        sorted(row for step in range(at, at + count // 4) for row in next(batches(runs[0], step))[0][:, 0].tolist())
        for at in (0, count // 2)
    )
    assert first in by_move and second in by_move and first != second


@pytest.mark.parametrize("variant", TRAINED)
def test_each_variant_of_the_issue_learns_a_poem(variant: str) -> None:
    run = trainer(variant)
    before = judged(run).value
    state = run.run()
    # from 8 bits a byte; a few steps learn at least which bytes there are
    assert before > 7.5 and judged(run).value < 6.5
    assert state.best[0] == -min(point.validation for point in state.curve)


def test_attention_is_looked_at_below_the_diagonal_alone() -> None:
    run = trainer()
    subset = run.dataset.validation
    batch = run.objective.batch(subset, evenly_spaced(len(subset), 2), CPU)
    found = {m.name: m.value for m in measure_attention(run.model, [batch]) if "head" not in m.where}
    assert found["sparsity"] == 0.0 and 0.9 < found["entropy"] <= 1.0
    content = attention_maps(run.model, batch)
    assert content is not None
    kept = np.load(io.BytesIO(content), allow_pickle=False)
    assert kept["maps"].shape[-2:] == (12, 12)
    assert (np.triu(kept["maps"].astype(np.float64), 1) == 0).all()
    assert kept["tokens"].shape == (2, 12)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContext]:
    monkeypatch.delenv("ATTNBENCH_DATA", raising=False)
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    books = tmp_path / "root" / "gutenberg"
    books.mkdir(parents=True)
    (books / "poem.txt").write_text(POEM * 20, encoding="utf-8")
    place = DataPlace(root=books.parent, cache=tmp_path / "cache", offline=True, notice=lambda text: None)
    store = Store(tmp_path / "results", lambda text: None)
    yield WorkerContext(device=CPU, place=place, store=store, digests={}, block="", send=lambda event: None)


def done(context: WorkerContext, variant: str, lane: str = "train", task: str = "gutenberg-char") -> Record:
    preset = Spec.parse("smoke[steps=4,evaluate_every=2,layers=1]")
    cell = Cell(variant=Spec.parse(variant), task=Spec.parse(task), preset=preset, lane=lane)  # type: ignore[arg-type]
    context.digests[cell.key] = digest_of_cell(cell, None, "cpu")
    record = baseline_cell(context, cell) if lane == "baseline" else train_cell(context, cell)
    context.store.append(record)
    return record


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


def test_an_unknown_key_lists_those_that_there_are(context: WorkerContext) -> None:
    with pytest.raises(SelectionError, match="no trained cell in"):
        find_trained(context.store, "abc")
    record = done(context, "additive-lm")
    with pytest.raises(SelectionError, match="fits 0 of the 1 cells") as refused:
        find_trained(context.store, "nothing")
    assert f"{record.key}  additive-lm on gutenberg-char" in refused.value.__notes__[0]


def test_baselines_stand_on_the_same_windows(context: WorkerContext) -> None:
    tested = [done(context, name, lane).first("bits_per_character", split="test") for name, lane in
              (("softmax", "train"), ("unigram", "baseline"), ("bigram", "baseline"))]  # fmt: skip
    values = [measurement.value for measurement in tested if measurement is not None]
    assert 8 > values[1] > values[2] > 0
    assert len({measurement.where["examples"] for measurement in tested if measurement is not None}) == 1


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


def test_a_text_without_blanks_has_no_perplexity_and_no_warning() -> None:
    one = judged(trainer())
    none = LanguageModelingResult(
        recipe=RECIPE, bits=one.bits, characters=one.characters, words=one.words * 0, tokens=one.tokens
    )
    assert math.isinf(none.perplexity)
    assert [m.name for m in none.measurements("test")] == ["bits_per_character", "loss"]


def test_a_model_is_not_asked_about_other_data_than_its_own(context: WorkerContext) -> None:
    found = load(context.store, done(context, "softmax"), CPU)
    assert dataset_of(found, context.place).provenance == found.record.data
    (context.place.root / "gutenberg" / "poem.txt").write_text(POEM * 21, encoding="utf-8")
    with pytest.raises(DataError, match="trained on, got others for gutenberg/"):
        dataset_of(found, context.place)


def test_a_prompt_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["sample", "any", "--prompt", "\udcff", "--results", str(tmp_path)])
    assert isinstance(run.exception, SelectionError) and "a prompt in UTF-8" in str(run.exception)
