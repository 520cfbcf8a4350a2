"""Token prediction: fresh data, accuracy by setting against brute force, attention at the right key, refusals."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure.attention.statistics import measure_attention
from attnbench.bench.models.decoder import TokenPredictor
from attnbench.bench.store.artifacts import results_of
from attnbench.bench.train.objectives.token_prediction import TokenPredictionObjective, TokenPredictionResult
from attnbench.tasks.problems.token_prediction import (
    UNASKED,
    TokenBatch,
    TokenExamples,
    TokenPrediction,
    TokenRecipe,
    TokenStream,
)
from attnbench.variants import build
from attnbench.variants.maps.softmax import Softmax

CPU = torch.device("cpu")
PROBLEM = TokenPrediction(vocabulary=9, extra=1)
RECIPE = TokenRecipe(
    width=32, feed_forward=32, shortest=2, length=6, longest=24, batch=32, steps=60, warmup=5, evaluate_every=30,
    learning_rate=1e-2, convolution=2, validation_examples=16, test_examples=30,
)  # fmt: skip
SETTINGS = ({"length": 6}, {"length": 24})


def draw(random: np.random.Generator, examples: int, length: int | None = None) -> TokenBatch:
    """Repeat the token at the beginning, at the end and in the middle: asked twice, once where only the first is."""
    length = length or int(random.integers(2, 7))
    ids = random.integers(2, 9, size=(examples, length + 1))
    ids[:, -1] = 1
    asked = np.stack([np.full(examples, length), np.full(examples, length // 2)], 1)
    answers = np.stack([ids[:, 0], np.where(ids[:, 0] % 2, ids[:, 0], UNASKED)], 1)
    return TokenBatch.of(ids, asked, answers, np.zeros_like(asked))


def examples(seed: int = 0) -> TokenExamples:
    random = np.random.default_rng(seed)
    return TokenExamples.joined([draw(random, 15, int(each["length"])) for each in SETTINGS], SETTINGS)


def objective(problem: TokenPrediction = PROBLEM) -> TokenPredictionObjective:
    return TokenPredictionObjective(problem, RECIPE)


def model(variant: str = "softmax", problem: TokenPrediction = PROBLEM) -> TokenPredictor:
    return objective(problem).model(lambda shape: build(variant, shape), 0)


def test_a_step_has_the_same_sequences_whenever_it_is_asked_for_and_every_other_has_its_own() -> None:
    stream = TokenStream.of(draw)
    again = [stream.at(7, 4, "t", 0) for _ in range(2)]
    assert np.array_equal(again[0].ids, again[1].ids) and np.array_equal(again[0].answers, again[1].answers)
    others = [stream.at(8, 4, "t", 0), stream.at(7, 4, "t", 1), stream.at(7, 4, "u", 0)]
    assert all(not np.array_equal(again[0].ids, other.ids) for other in others)


def test_accuracy_and_loss_are_those_of_brute_force_in_all_and_in_each_setting() -> None:
    test, mine = examples(), model()
    result = objective().evaluate(mine, test, CPU)
    shares, nats = [], []
    with torch.no_grad():
        for row in range(len(test)):
            ids = torch.from_numpy(test.split.sequence(row).astype(np.int64))[None]
            right, lost = [], []
            for at, answer in zip(test.asked[row], test.answers[row], strict=True):
                if answer:
                    logits = mine(ids, torch.tensor([[at]]))[0, 0]
                    right.append(int(logits.argmax()) == answer)
                    lost.append(float(-logits.log_softmax(-1)[answer]))
            shares.append(np.mean(right))
            nats.append(np.mean(lost))
    found = {(m.name, m.where.get("length")): m for m in result.measurements("test")}
    for length, rows in ((None, slice(None)), (6, slice(15)), (24, slice(15, None))):
        assert found["accuracy", length].value == pytest.approx(np.mean(shares[rows]))
        assert found["loss", length].value == pytest.approx(np.mean(nats[rows]), rel=1e-5)
        assert found["accuracy", length].where["examples"] == len(shares[rows])
    # the first is that of all: a board takes it, and it is the mean over settings
    assert next(iter(result.measurements("test"))) == found["accuracy", None]
    assert result.value == pytest.approx((found["accuracy", 6].value + found["accuracy", 24].value) / 2)


def test_an_exact_example_counts_only_where_all_its_answers_are_right() -> None:
    shares = torch.tensor([0.0, 0.5, 1.0])
    assert objective()._credit(shares).tolist() == [0.0, 0.5, 1.0]
    assert objective(replace(PROBLEM, exact=True))._credit(shares).tolist() == [0.0, 0.0, 1.0]


def test_sequences_with_many_answers_are_looked_at_in_smaller_number() -> None:
    ids = np.random.default_rng(0).integers(2, 9, size=(40, 20))
    asked = np.tile(np.arange(16), (40, 1))
    answers = np.where((np.arange(40)[:, None] == 0) | (asked == 0), ids[:, :16], UNASKED)
    test = TokenExamples.joined([TokenBatch.of(ids, asked, answers, np.zeros_like(asked))], ({"length": 20},))
    seen: list[int] = []
    mine = model("softmax[impl=eager]")
    assert len(list(objective()._attention(mine, test, CPU, lambda: seen.append(1)))) == 1
    # of all sequences the one with the most answers decides: 256 answers, 16 in a sequence
    assert len(seen) == 16


def test_the_weight_on_the_right_key_is_that_of_the_head_that_puts_most_there() -> None:
    problem, recipe = PROBLEM, replace(RECIPE, heads=2, layers=2)
    mine = TokenPredictionObjective(problem, recipe).model(lambda shape: build("softmax[impl=eager]", shape), 0)
    test = examples()
    found = dict(TokenPredictionObjective(problem, recipe).evaluate(mine, test, CPU).attention)
    # by brute force, from the weights that the variants themselves give
    sums: dict[int, list[list[float]]] = {0: [], 1: []}
    for row in range(len(test)):
        ids = torch.from_numpy(test.split.sequence(row).astype(np.int64))[None]
        kept: list[torch.Tensor] = []
        handles = [
            variant.register_forward_hook(lambda v, a, o, kept=kept: kept.append(v.weights(a[0], a[1], a[3])))
            for variant in mine.variants
        ]
        with torch.no_grad():
            mine.states(ids)
        for handle in handles:
            handle.remove()
        for at, answer in zip(test.asked[row], test.answers[row], strict=True):
            if answer:
                sums[row // 15].append([float(w[0, head, at, 0]) for w in kept for head in range(2)])
    means = {number: np.mean(rows, axis=0) for number, rows in sums.items()}
    best = np.argmax(means[0] + means[1])
    assert found == pytest.approx({number: mean[best] for number, mean in means.items()}, rel=1e-5)


class Opaque(Softmax):
    """Softmax that shows no weights."""

    def weights(self, *arguments: object) -> None:  # type: ignore[override]
        return None


def test_a_variant_without_weights_has_none_on_the_right_key() -> None:
    opaque = objective().model(Opaque, 0)
    names = [
        {m.name for m in objective().evaluate(each, examples(), CPU).measurements("test")} for each in (model(), opaque)
    ]
    assert names[0] == {"accuracy", "loss", "weight_on_right_key"} and names[1] == {"accuracy", "loss"}


def test_padding_behind_shorter_sequences_changes_neither_loss_nor_statistics() -> None:
    test, mine = examples(), model("softmax[impl=eager]")
    one, other = np.array([0, 1]), np.array([15, 16])
    mixed = objective().batch(test, np.concatenate([one, other]), CPU)
    assert len(mixed) == 5 and len(objective().batch(test, one, CPU)) == 4
    with torch.no_grad():
        alone = [
            mine(objective().batch(test, at, CPU)[0][:, 0], objective().batch(test, at, CPU)[2]) for at in (one, other)
        ]
        together = mine(mixed[0][:, 0], mixed[2], mixed[4])
    torch.testing.assert_close(together[:2, : alone[0].shape[1]], alone[0])
    torch.testing.assert_close(together[2:, : alone[1].shape[1]], alone[1])
    by_hand = [m.value for at in (one, other) for m in measure_attention(mine, [objective().batch(test, at, CPU)])]
    assert all(np.isfinite(by_hand)) and len(measure_attention(mine, [mixed])) > 0


def test_predictions_are_shares_with_their_settings_and_read_back() -> None:
    result = TokenPredictionResult(correct=np.linspace(0, 1, 30), nats=None, subset=examples())
    file = io.BytesIO()
    np.savez_compressed(file, **result.predictions())
    read = results_of(file.getvalue())
    assert np.array_equal(read.values, result.correct)
    assert read.setting is not None and read.setting.tolist() == [0] * 15 + [1] * 15


def test_a_baseline_is_scored_by_setting_and_has_no_loss() -> None:
    test = examples()
    result = objective().evaluate_baseline(test.answers, test)
    assert [m.value for m in result.measurements("test")] == [1.0, 1.0, 1.0]
    wrong = objective().measure_baseline(np.full_like(test.answers, 1), test)
    assert {m.name for m in wrong} == {"accuracy"} and [m.value for m in wrong] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("text", "reason"), [
    ("quick[shortest=9]", "shortest of at most length"), ("quick[train_examples=9]", "draws fresh ones"),
    ("quick[positions=learned]", "never trained"), ("quick[test_examples=none]", "a generated task is infinite"),
])  # fmt: skip
def test_what_a_preset_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SelectionError, match=reason):
        RECIPE.with_overrides(Spec.parse(text))


def test_the_variant_is_built_for_the_longest_test() -> None:
    assert model().variants[0].shape.max_length == 25
    assert not model().variants[0].shape.padding and model().variants[0].shape.causal
