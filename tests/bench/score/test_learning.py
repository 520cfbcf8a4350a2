"""Who learned: the bar between the modes, from the task's trivial predictors and the variant's own best seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.metrics import ACCURACY, METRICS
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.learning import TrivialBaselines, TrivialPrediction, above, bars_of, learned_seeds
from attnbench.bench.score.quality import SeedScores, scores_by_variant
from attnbench.bench.store.table import table_of

BARS = TrivialBaselines(TrivialPrediction("majority", 0.0134), TrivialPrediction("first-value", 0.0904))


def learned(*scores: float, examples: int = 448, bars: TrivialBaselines = BARS) -> list[bool]:
    return list(learned_seeds(scores, examples, None, ACCURACY, bars))


def test_the_committed_trainings_of_noisy_recall_fall_into_their_modes() -> None:
    assert learned(0.984, 0.984, 0.016, 0.106, 0.998, 0.030) == [True, True, False, False, True, False]
    assert learned(0.804, 0.551, 0.811, 0.893, 0.910, 0.014) == [True] * 5 + [False]
    assert learned(0.999, 0.545, 0.082, 0.996, 0.999, 0.992) == [True, True, False, True, True, True]
    # KDA: its failures are far above the rule, and three of them alone do not make a bar of their own
    kda = (0.310, 0.739, 0.475, 0.399, 0.584, 0.306)
    assert learned(*kda) == [False, True, False, False, True, False]
    assert learned(0.310, 0.399, 0.475) == [False] * 3
    assert learned(0.310, 0.399, 0.475, bars=BARS._replace(ceiling=None)) == [True] * 3
    # a rule that looks at one key does as well: nobody learned, whatever single seeds are above it by luck
    assert learned(0.096, 0.086, 0.100, 0.108, 0.103, 0.112) == [False] * 6


def test_the_bar_is_never_below_the_best_trivial_predictor() -> None:
    near = TrivialBaselines(TrivialPrediction("majority", 0.1), TrivialPrediction("rule", 0.5), ceiling=None)
    # halfway from 0.1 to 0.7 is 0.4
    assert learned(0.7, 0.45, 0.55, bars=near) == [True, False, True]


def test_the_best_seed_is_corrected_for_being_the_best_of_many() -> None:
    one = TrivialBaselines(TrivialPrediction("rule", 0.5), TrivialPrediction("rule", 0.5), ceiling=None)
    assert above([0.525], 2000, None, ACCURACY, one.trivial) == (True,)
    assert learned(0.525, examples=2000, bars=one) == [True]
    # 0.525 of 2,000 lies 2.2 standard errors above; the best of six has to lie 2.6 above
    assert learned(0.525, *[0.5] * 5, examples=2000, bars=one) == [False] * 6


def test_without_a_trivial_predictor_nothing_says_that_a_training_failed() -> None:
    assert learned(0.0, 0.9, bars=TrivialBaselines()) == [True, True]


def test_bits_are_better_when_lower() -> None:
    bits = METRICS["bits_per_character"]
    bars = TrivialBaselines(TrivialPrediction("unigram", 4.8), TrivialPrediction("bigram", 3.6))
    draws = np.array([[2.0, 4.7, 3.3, 3.5], [2.02, 4.72, 3.32, 3.52]])
    assert learned_seeds(draws[0].tolist(), 0, draws, bits, bars) == (True, False, True, False)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=10), st.data())
def test_a_better_score_is_never_less_learned(scores: list[float], data: st.DataObject) -> None:
    found = learned(*scores)
    order = data.draw(st.permutations(range(len(scores))))
    assert learned(*(scores[at] for at in order)) == [found[at] for at in order]
    assert all(found[b] for a in range(len(scores)) for b in range(len(scores)) if found[a] and scores[b] >= scores[a])


def test_bars_are_the_best_of_each_kind_and_no_record_of_a_variant_moves_them(bench) -> None:
    b = bench()
    for name, share in (("majority", 0.2), ("unigram", 0.25), ("rule", 0.4), ("other", 0.3)):
        b.add(b.cell(name, lane="baseline"), [Measurement.of("accuracy", share, split="test", examples=500)])
    b.train("softmax", [0.9, 0.9, 0.9])

    def found() -> tuple[TrivialBaselines, SeedScores]:
        table = table_of(b.records)
        key = board_keys(table)[0]
        return bars_of(table, key.runs(table, "baseline"), ACCURACY), scores_by_variant(table, key, b.predictions)[
            "softmax"
        ]

    before = found()
    # nobody knows what a model can reach on reviews of films
    assert before[0] == TrivialBaselines(TrivialPrediction("unigram", 0.25), TrivialPrediction("rule", 0.4), None)
    b.train("rela", [1.0, 1.0, 0.3])
    assert found() == before
    with_chance = bars_of(table_of([]), [], ACCURACY.with_chance(0.5))
    assert with_chance == TrivialBaselines(*[TrivialPrediction("blind guessing", 0.5)] * 2, None)


def test_a_synthetic_task_says_what_solves_it(bench) -> None:
    b = bench()
    b.task = "recall"
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.01, split="test", examples=500)])
    for name, scores in (("softmax", [1.0, 0.9, 0.4]), ("rela", [0.3, 0.4, 0.35])):
        b.train(name, scores)
    table = table_of(b.records)
    found = scores_by_variant(table, board_keys(table)[0], b.predictions)
    assert found["softmax"].learned == (True, True, False)
    assert found["rela"].learned_nowhere and not found["rela"].is_certain and not found["rela"].in_doubt


def test_seeds_that_may_all_have_failed_are_in_doubt_where_nobody_knows_the_ceiling(bench) -> None:
    b = bench()
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.5, split="test", examples=2000)])
    for name, scores in (("softmax", [0.8, 0.82, 0.81]), ("rela", [0.7, 0.71, 0.72]), ("linear", [0.6, 0.95, 0.95])):
        b.train(name, scores)
    table = table_of(b.records)
    found = scores_by_variant(table, board_keys(table)[0], b.predictions)
    assert {name: one.is_certain for name, one in found.items()} == {"softmax": True, "rela": False, "linear": True}
    assert found["linear"].learned == (False, True, True)


def test_two_of_six_seeds_are_no_rank_and_three_are(bench) -> None:
    b = bench()
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.1, split="test", examples=500)])
    b.train("softmax", [0.9] * 6)
    b.train("rela", [0.9, 0.1, 0.9, 0.1, 0.1, 0.1])
    b.train("linear", [0.9, 0.1, 0.9, 0.1, 0.1, 0.9])
    b.train("local", [0.1] * 6)
    table = table_of(b.records)
    found = scores_by_variant(table, board_keys(table)[0], b.predictions)
    reasons = {name: one.missing_reason for name, one in found.items()}
    few = "learned at 2 of 6 seeds; a rank needs 3"
    assert reasons == {"softmax": "", "rela": few, "linear": "", "local": ""}
    assert found["linear"].compared.seeds == (0, 2, 5) and found["linear"].compared.scores == (0.9,) * 3
    assert found["local"].compared == found["local"] and not found["local"].learned_in_part
    assert found["local"].has_learned is False and found["linear"].has_learned is False


@pytest.mark.parametrize("name", ["learned_by_seed", "above_by_seed"])
def test_a_part_of_the_seeds_keeps_what_is_known_of_them(name: str) -> None:
    one = SeedScores(variant="rela", seeds=(0, 1, 2), scores=(0.1, 0.2, 0.3), **{name: (True, False, True)})
    assert getattr(one.on_seeds((1, 2)), name) == (False, True)
