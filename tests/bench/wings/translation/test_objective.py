"""Translation as the train lane sees it: batches, the resumed run, scores by hand, figures of attention."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_cuda import Redirected, install

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.record import Measurement, Provenance
from attnbench.bench.stats.bootstrap import corpus_score
from attnbench.bench.train.batch_source import batch_source
from attnbench.bench.train.trainer import Trainer
from attnbench.bench.wings.translation.alignment import LayerErrors
from attnbench.bench.wings.translation.attention import (
    alignment_measurements,
    attention_measurements,
    attention_weights,
    lowest_errors,
    summaries,
)
from attnbench.bench.wings.translation.decoding import translate
from attnbench.bench.wings.translation.objective import TranslationObjective
from attnbench.tasks.contract import Dataset
from attnbench.tasks.data.prepared import pack
from attnbench.tasks.translation.problem import (
    AlignedIds,
    EvaluationPairs,
    GoldLinks,
    SentencePairs,
    Translation,
    TranslationRecipe,
)
from attnbench.variants import Mask, build

sacrebleu = pytest.importorskip("sacrebleu")

CPU = torch.device("cpu")
RECIPE = TranslationRecipe(
    layers=1, width=16, heads=2, feed_forward=32, vocabulary=30, length=24, tokens=60, steps=8, warmup=2,
    evaluate_every=4, evaluate_batch=5, learning_rate=1e-2, beam=3,
)  # fmt: skip


def write_out(ids):
    return " ".join(f"w{int(each)}" for each in ids if int(each) > 3)


def pairs(count, seed):
    random = np.random.default_rng(seed)
    sides = []
    for _ in range(count):
        words = random.integers(4, 30, random.integers(2, 9)).astype(np.uint16)
        sides += [np.append(words, np.uint16(3)), np.append(words[::-1], np.uint16(3))]
    return pack(sides, [0] * count, towers=2)


def data():
    train, validation, test = pairs(60, 0), pairs(13, 1), pairs(12, 2)
    labels = np.array([0] * 8 + [1] * 4)
    test = replace(test, labels=labels)
    lines = [tuple(write_out(test.sequence(at, side)) for at in range(12)) for side in (0, 1)]
    aligned = AlignedIds(
        source=test.sequence(0, 0),
        target=test.sequence(0, 1),
        source_words=(*range(len(test.sequence(0, 0)) - 1), -1),
        target_words=(*range(len(test.sequence(0, 1)) - 1), -1),
        gold=GoldLinks(sure=frozenset({(0, 0)}), possible=frozenset({(0, 0), (1, 1)})),
    )
    return Dataset(
        train=SentencePairs(split=train, indices=np.arange(60)),
        validation=SentencePairs(split=validation, indices=np.arange(13)),
        test=EvaluationPairs(
            split=test,
            indices=np.arange(12),
            sources=lines[0],
            references=lines[1],
            sets=("news", "pictures"),
            language="en",
            decode=write_out,
            pieces=lambda ids: [str(each) for each in ids],
            encode=lambda lines: [np.array([*map(int, line.split()), 3], dtype=np.uint16) for line in lines],
            aligned=(aligned,),
        ),
        provenance=Provenance(source="toy", fidelity="regenerated"),
    )


KIND = TranslationObjective(Translation(vocabulary=2**16), RECIPE)


def model(variant="softmax", seed=0):
    return KIND.model(lambda shape: build(variant, shape), seed)


def trainer(variant="softmax", **options):
    return Trainer(KIND, model(variant), data(), task="toy", seed=0, device=CPU, **options)


@pytest.mark.parametrize("free", [80 * 2**30, 0])
def test_batches_of_a_gpu_are_those_of_the_host(free, monkeypatch):
    install(monkeypatch).free = free
    feed, device = KIND.feed(data().train, "toy", 1), torch.device("cuda", 0)
    with Redirected(), batch_source(KIND, data().train, "toy", 1, device, range(2, 30)) as source:
        for number in range(2, 30):
            assert all(map(torch.equal, source(number), feed(number, CPU)))


def test_a_batch_of_training_keeps_to_the_tokens_of_the_recipe():
    feed = KIND.feed(data().train, "toy", 0)
    for step in range(20):
        source, lengths, target = feed(step, CPU)
        assert len(source) * max(source.shape[2], target.shape[1]) <= RECIPE.tokens
        assert (source != 0).sum(-1).tolist() == lengths.tolist()


def test_what_is_recorded_is_what_sacrebleu_says_of_the_text_that_was_found():
    translator, test = model(), data().test
    found = KIND.evaluate(translator, test, CPU)
    by_hand = []
    for at in range(12):
        source, lengths, _ = KIND.batch(test, np.array([at]), CPU)
        by_hand.append(write_out(translate(translator, source, lengths)[0].tokens))
    assert list(found.translations) == by_hand
    recorded = {(m.name, m.where.get("set")): m for m in found.measurements("test") if m.name in ("bleu", "chrf")}
    for name, chosen in (("news", slice(0, 8)), ("pictures", slice(8, 12))):
        references = [list(test.references[chosen])]
        assert recorded["bleu", name].value == sacrebleu.corpus_bleu(by_hand[chosen], references).score
        assert recorded["chrf", name].value == sacrebleu.corpus_chrf(by_hand[chosen], references).score
        assert "tok:13a" in recorded["bleu", name].where["signature"]
    first = next(m for m in found.measurements("test") if m.name == "bleu")
    assert first.where["set"] == "news" and first.where["examples"] == 8
    kept = found.predictions()
    assert kept["statistics"].shape == (8, 10)
    assert bytes(kept["translations"]).decode().split("\n") == by_hand


def test_statistics_are_kept_of_every_sentence_with_the_set_that_it_is_of():
    test = data().test
    found = KIND.evaluate(model(), replace(test, indices=np.array([9, 0, 11, 3, 4])), CPU)
    kept = found.predictions()
    assert kept["set_names"].tolist() == ["news", "pictures"] and kept["sentence_sets"].tolist() == [1, 0, 1, 0, 0]
    lines = bytes(kept["translations"]).decode().split("\n")
    for at, index in enumerate([9, 0, 11, 3, 4]):
        by_hand = sacrebleu.corpus_bleu([lines[at]], [[test.references[index]]])
        assert kept["sentence_statistics"][at].tolist() == [
            by_hand.sys_len, by_hand.ref_len, *by_hand.counts, *by_hand.totals,
        ]  # fmt: skip
    assert np.array_equal(kept["statistics"], kept["sentence_statistics"][[1, 3, 4]])
    recorded = {m.where["set"]: m.value for m in found.measurements("test") if m.name == "bleu"}
    for number, name in enumerate(("news", "pictures")):
        mine = kept["sentence_statistics"][kept["sentence_sets"] == number]
        assert corpus_score("bleu", mine) == pytest.approx(recorded[name], abs=1e-9)


def test_pairs_of_a_test_set_without_a_name_are_refused():
    with pytest.raises(DataError, match="expected a name for each of 2 test sets, got news"):
        replace(data().test, sets=("news",))


def test_the_loss_is_per_token_whatever_the_batches():
    translator, validation = model().eval(), data().validation
    found = KIND.evaluate(translator, validation, CPU)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for at in range(13):
            source, lengths, target = KIND.batch(validation, np.array([at]), CPU)
            chances = translator(source, lengths, target).log_softmax(-1)
            total -= float(chances.gather(-1, target[..., None]).sum())
            tokens += target.numel()
    assert found.loss == pytest.approx(total / tokens, rel=1e-5) and found.tokens == tokens


def test_a_perfect_copy_of_the_references_scores_100_and_the_source_does_not():
    test = data().test
    perfect, copied = (
        {m.where["set"]: m.value for m in KIND.measure_baseline(np.array(lines), test) if m.name == "bleu"}
        for lines in (test.references, test.sources)
    )
    assert perfect == pytest.approx({"news": 100.0, "pictures": 100.0})
    assert copied["news"] < 50


def test_observed_weights_are_those_of_the_variants_by_kind():
    translator, split = model("rela").eval(), data().test.split
    source, target = split.sequence(0, 0), split.sequence(0, 1)
    weights = attention_weights(translator, source, target, CPU)
    assert {objective: each.shape for objective, each in weights.items()} == {
        "encoder": (1, 2, len(source), len(source)),
        "decoder": (1, 2, len(target), len(target)),
        "cross": (1, 2, len(target), len(source)),
    }
    assert not np.triu(weights["decoder"][0, 0], 1).any()
    seen = []
    variant = translator.kinds()["encoder"][0]
    handle = variant.register_forward_hook(lambda v, a, _: seen.append(v.weights(a[0], a[1], Mask())))
    with torch.inference_mode():
        translator.encode(torch.tensor(source.astype(np.int64))[None], torch.tensor([len(source)]))
    handle.remove()
    np.testing.assert_allclose(weights["encoder"][0], seen[0][0].double().numpy(), atol=1e-6)


def test_figures_are_counted_over_real_rows_by_kind_and_layer():
    translator, test = model("rela").eval(), data().test
    chosen = [(test.split.sequence(at, 0), test.split.sequence(at, 1)) for at in range(4)]
    found = {
        (m.name, m.where["attention"]): m for m in attention_measurements(translator, chosen, CPU) if "layer" in m.where
    }
    zeros = {objective: np.zeros(2) for objective in ("encoder", "decoder", "cross")}
    allowed = dict.fromkeys(zeros, 0)
    nulls, rows = np.zeros(2), 0
    for source, target in chosen:
        for objective, weights in attention_weights(translator, source, target, CPU).items():
            inside = np.ones(weights.shape[2:], dtype=bool)
            if objective == "decoder":
                inside = np.tril(inside)
            zeros[objective] += ((weights[0] == 0) & inside).sum((1, 2))
            allowed[objective] += inside.sum()
            if objective == "cross":
                nulls += (weights[0].sum(-1) == 0).sum(-1)
                rows += weights.shape[2]
    for objective in zeros:
        measured = found["sparsity", objective]
        assert measured.samples == pytest.approx(tuple(zeros[objective] / allowed[objective]))
        assert measured.value == pytest.approx((zeros[objective] / allowed[objective]).mean())
    assert found["null_rate", "cross"].samples == pytest.approx(tuple(nulls / rows))
    assert 0 <= found["head_diversity", "encoder"].value <= np.log(2)
    assert ("attention_distance", "cross") not in found


def test_alignment_errors_are_measured_with_the_target_forced():
    every = alignment_measurements(model(), data().test.aligned, CPU)
    figures = [m for m in every if "layer" in m.where]
    assert {(m.where["shift"], m.where["how"]) for m in figures} == {
        (shift, how) for shift in (False, True) for how in ("best head", "averaged weights", "mean over heads")
    }
    assert all(0 <= m.value <= 1 and m.where["sentences"] == 1 for m in every)
    assert alignment_measurements(model(), (), CPU) == []


def test_the_lowest_alignment_errors_are_those_of_the_best_layer():
    errors = [
        LayerErrors(layer=0, shift=True, heads=(0.9, 0.4), averaged=0.6),
        LayerErrors(layer=1, shift=True, heads=(0.3, 0.8), averaged=0.7),
    ]
    head, averaged = lowest_errors(errors, 5)
    assert (head.value, head.where["of_layer"], head.where["of_head"], head.where["how"]) == (0.3, 1, 0, "best head")
    assert (averaged.value, averaged.where["of_layer"], averaged.where["how"]) == (0.6, 0, "averaged weights")
    assert all(
        m.where["shift"] is True and m.where["sentences"] == 5 and "layer" not in m.where for m in (head, averaged)
    )


def test_figures_of_the_whole_model_are_those_of_the_attentions_under_test():
    layers = [
        Measurement.of("sparsity", value, attention=objective, layer=layer)
        for objective, values in (("encoder", (0.1, 0.3)), ("decoder", (0.5, 0.5)), ("cross", (0.6, 0.8)))
        for layer, value in enumerate(values)
    ]
    found = {m.where.get("attention"): m.value for m in summaries(layers, ("encoder", "cross"))}
    assert found == pytest.approx({None: 0.45, "encoder": 0.2, "decoder": 0.5, "cross": 0.7})
    split = data().test.split
    figures = attention_measurements(
        model("rela"), [(split.sequence(at, 0), split.sequence(at, 1)) for at in range(3)], CPU
    )
    names = [m.name for m in figures if not {"layer", "attention"} & set(m.where)]
    assert names == ["sparsity", "null_rate", "entropy", "block_sparsity", "head_diversity"]
