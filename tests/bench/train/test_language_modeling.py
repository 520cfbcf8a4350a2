"""Training and judging a model of language: bits against brute force, pairing by seed, resuming, and sampling."""

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from language_cells import POEM, context_with_poem, done
from training_batches import batches

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.order import evenly_spaced
from attnbench.bench.core.record import Provenance
from attnbench.bench.measure.attention.heads import Diversity
from attnbench.bench.measure.attention.recorder import Call, attention_maps
from attnbench.bench.measure.attention.statistics import measure_attention
from attnbench.bench.run.context import WorkerContext
from attnbench.bench.store.trained import find_trained
from attnbench.bench.train.objectives.language_modeling import (
    COMPARED,
    ROWS,
    STRETCHES,
    LanguageModelingResult,
    _compare_heads,
)
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import Dataset
from attnbench.tasks.language_modeling.packing import joined, texts
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

CPU = torch.device("cpu")
RECIPE = LanguageRecipe(
    layers=1, width=16, heads=2, feed_forward=32, length=12, stride=5, batch=4, steps=12, warmup=3, evaluate_every=4,
    evaluate_batch=3, learning_rate=1e-2,
)  # fmt: skip
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
    return found


def test_bits_are_those_of_each_byte_after_its_window() -> None:
    run = trainer()
    found = judged(run)
    windows = run.dataset.test
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
    kept = np.load(io.BytesIO(content), allow_pickle=False)
    assert kept["maps"].shape[-2:] == (12, 12)
    assert (np.triu(kept["maps"].astype(np.float64), 1) == 0).all()
    assert kept["tokens"].shape == (2, 12)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    return context_with_poem(tmp_path, monkeypatch)


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


def test_a_text_without_blanks_has_no_perplexity_and_no_warning() -> None:
    one = judged(trainer())
    none = LanguageModelingResult(
        recipe=RECIPE, bits=one.bits, characters=one.characters, words=one.words * 0, tokens=one.tokens
    )
    assert math.isinf(none.perplexity)
    assert [m.name for m in none.measurements("test")] == ["bits_per_character", "loss"]
