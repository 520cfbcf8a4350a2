"""Boards of tasks that are judged by something else than accuracy: titles, directions, verdicts, sentences."""

from dataclasses import replace

import numpy as np
import pytest
from boards import entry, notes
from moderated_t import half_width_of_examples, half_width_of_seeds
from scipy import stats

from attnbench.bench.board.board import Board
from attnbench.bench.board.build_report import report_for_task
from attnbench.bench.board.compare import compare
from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.cost import costs_by_variant
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.pareto import frontier_shares
from attnbench.bench.score.quality import metric_of, scores_by_variant
from attnbench.bench.stats.bootstrap import corpus_score, resampled_scores
from attnbench.bench.store.table import table_of

TIMES = [1.0, 1.1, 0.9, 1.05, 0.95]
RNG = np.random.default_rng(11)
CHARACTERS = RNG.integers(80, 120, 600).astype(np.float64)
HARD = RNG.normal(0, 0.1, 600)


def bits(level: float, seed: int = 0) -> np.ndarray:
    """Statistics of 600 texts at about `level` bits per character, hard ones hard for all."""
    own = np.random.default_rng([seed, int(1000 * level)]).normal(0, 0.01, 600)
    return np.column_stack([CHARACTERS * (level + HARD + own), CHARACTERS])


def read(b: object, name: str, levels: tuple[float, ...]) -> None:
    statistics = [bits(level, seed) for seed, level in enumerate(levels)]
    scores = [corpus_score("bits_per_character", s) for s in statistics]
    b.score(name, "bits_per_character", scores, statistics)


@pytest.fixture
def modelled(bench) -> object:
    b = bench(task="lm")
    read(b, "softmax", (1.300, 1.302, 1.298))
    read(b, "additive-lm", (1.305, 1.307, 1.303))
    read(b, "relative", (1.400, 1.402, 1.398))
    read(b, "local-routing", (1.250, 1.252, 1.248))
    return b


def board(b: object, **options: object) -> Board:
    table = table_of(b.records)
    return board_for_task(table, board_keys(table)[0], predictions=b.predictions, **options)


def test_fewer_bits_come_first(modelled) -> None:
    found = board(modelled)
    assert [(r.name, r.place) for r in found.ranked] == [
        ("local-routing", "1"), ("softmax", "2"), ("additive-lm", "3"), ("relative", "4"),
    ]  # fmt: skip
    assert [(c.title, c.unit, c.better) for c in found.columns[:2]] == [
        ("bits/character", "bits", "lower"),
        ("vs softmax", "bits", "lower"),
    ]
    assert "spends the fewest bits per character on lm" in found.question


def test_verdicts_use_the_margin_of_the_quantity(modelled) -> None:
    found = board(modelled)
    assert {name: entry(found, name, "verdict").text for name in ("local-routing", "additive-lm", "relative")} == {
        "local-routing": "better",
        "additive-lm": "within 0.02 bits",
        "relative": "worse by > 0.02 bits",
    }
    # with a margin of 5 thousandths, which is what it lacks, rela is no longer shown to be no worse
    assert entry(board(modelled, margin=0.005), "additive-lm", "verdict").text == "worse by > 0"
    assert any("margin of 0.02 bits above softmax" in column.description for column in found.columns)


def test_differences_have_the_sign_of_the_quantity(modelled) -> None:
    gap = entry(board(modelled), "local-routing", "gap")
    assert gap.value == pytest.approx(-0.05, abs=0.002) and gap.low < gap.value < gap.high < 0
    assert gap.text.startswith("−0.0")


def test_the_interval_is_that_of_seeds_and_of_the_paired_bootstrap(modelled) -> None:
    found = board(modelled)
    gap = entry(found, "local-routing", "gap")
    scores, drawn = {}, {}
    for name, level in (("softmax", 1.300), ("additive-lm", 1.305), ("relative", 1.400), ("local-routing", 1.250)):
        each = [bits(level + step, seed) for seed, step in enumerate((0, 0.002, -0.002))]
        scores[name] = [s[:, 0].sum() / s[:, 1].sum() for s in each]
        drawn[name] = np.stack([resampled_scores("bits_per_character", s) for s in each], axis=1)
    # the comparison set of this metric has these four, three comparisons with softmax
    seeds = half_width_of_seeds(scores, "local-routing", "softmax", list(scores), pairs=3)
    by_seed = drawn["local-routing"] - drawn["softmax"]
    shared = (3 * by_seed.mean(axis=1).var(ddof=1) - by_seed.var(axis=0, ddof=1).mean()) / 2
    examples = half_width_of_examples(shared**0.5, pairs=3)
    assert (gap.high - gap.low) / 2 == pytest.approx(np.hypot(seeds, examples), rel=1e-5)
    # hard texts are hard for both: paired, the noise of the test set is a small part of what it is for one alone
    level = entry(found, "local-routing", "bits_per_character")
    assert examples < 0.3 * (level.high - level.low) / 2
    (note,) = notes(found, "intervals")
    assert "400 bootstrap draws, paired by example" in note.text and not note.warning


def test_without_statistics_the_interval_is_over_seeds_and_says_so(bench) -> None:
    b = bench(task="wmt")
    for name, level in (("softmax", 27.0), ("rela", 27.3)):
        b.score(name, "bleu", [level - 0.1, level, level + 0.1])
    found = board(b)
    gap = entry(found, "rela", "gap")
    # two variants of the declared ones are no pool: each keeps its own variance, and the pair has 4 degrees of freedom
    half = (2 * 0.01 / 3) ** 0.5 * stats.t.ppf(1 - 0.025 / 3, 4)
    assert (gap.value, gap.high) == pytest.approx((0.3, 0.3 + half))
    assert notes(found, "intervals")[0].warning


def test_statistics_that_do_not_bear_out_the_score_are_not_its_own(bench) -> None:
    b = bench(task="lm")
    b.score("softmax", "bits_per_character", [1.1, 1.2, 1.3], [bits(1.5)] * 3)
    table = table_of(b.records)
    found = scores_by_variant(table, board_keys(table)[0], b.predictions)["softmax"]
    assert found.draws is None and found.scores == (1.1, 1.2, 1.3)


def test_accuracy_is_the_metric_where_it_was_measured_and_never_by_validation(bench) -> None:
    b = bench(task="wmt")
    b.score("softmax", "bleu", [27.0])
    b.records[0] = b.records[0].__class__(**{
        **{name: getattr(b.records[0], name) for name in b.records[0].__dataclass_fields__},
        "measurements": (*b.records[0].measurements, Measurement.of("accuracy", 0.5, split="validation", examples=9)),
    })  # fmt: skip
    table = table_of(b.records)
    assert metric_of(table, board_keys(table)[0]).name == "bleu"
    b.train("rela", [0.5])
    table = table_of(b.records)
    assert metric_of(table, board_keys(table)[0]).name == "accuracy"


def with_times(modelled):
    for name, factor in (("softmax", 1.0), ("local-routing", 0.5), ("relative", 0.4), ("additive-lm", 2.0)):
        modelled.time(name, [factor * t for t in TIMES], TIMES)
    return table_of(modelled.records)


def test_the_frontier_knows_which_way_is_good(modelled) -> None:
    table = with_times(modelled)
    board_key = board_keys(table)[0]
    trials, timings = scores_by_variant(table, board_key, modelled.predictions), costs_by_variant(table, board_key)
    assert frontier_shares(trials, timings) == {
        "softmax": 0.0,
        "local-routing": 1.0,
        "relative": 1.0,
        "additive-lm": 0.0,
    }
    found = report_for_task(table, board_key, modelled.predictions, lambda name: None)
    assert found.quality == "bits/character" and found.better == "lower"
    assert {s["variant"] for s in found.pareto if s["on_frontier"]} == {"local-routing", "relative"}


def test_sentences_speak_of_the_quantity(modelled) -> None:
    table = table_of(modelled.records)
    found = compare(table, board_keys(table)[0], "local-routing", "softmax", modelled.predictions)
    assert "bits (lower is better), 95 % interval" in found.sentences[0]
    assert found.sentences[0].startswith("local-routing − softmax on lm (quick): −")
    assert found.sentences[0].endswith("corrected for 3 pairs. Better.")
    assert found.points is not None and found.points.value < 0


def test_curves_of_the_quantity_are_drawn_and_matched_by_time(modelled) -> None:
    curve = [{"step": s, "validation_bits_per_character": 2.0 - s / 100, "validation_loss": 3.0} for s in (10, 20)]
    for record in modelled.records:
        record.artifacts["curve"] = "curve.json"
    for name, factor in (("softmax", 1.0), ("local-routing", 2.0)):
        modelled.time(name, [factor * t for t in TIMES], TIMES)
    table = table_of(modelled.records)
    found = report_for_task(table, board_keys(table)[0], modelled.predictions, lambda name: curve)
    curves = [c for c in found.curves if (c["variant"], c["quantity"]) == ("local-routing", "quality")]
    assert [(c["step"], round(c["value"], 9)) for c in curves] == [
        (10, 1.9), (20, 1.8),
    ]  # fmt: skip
    # half of the steps: 1.9 against 1.8
    assert entry(found.board, "local-routing", "equal_time").value == pytest.approx(0.1)


def test_a_suite_does_not_average_apples_and_pears(bench) -> None:
    b = bench(task="lm")
    b.score("softmax", "bits_per_character", [1.0] * 3)
    b.task = "lra-text"
    b.train("softmax", [0.5] * 3)
    table = table_of(b.records)
    with pytest.raises(SelectionError, match="judged by accuracy and bits/character, which have no average"):
        board_for_suite(table, "mixed", board_keys(table))


def test_a_task_says_which_metric_ranks_and_by_which_margin(bench) -> None:
    """Of two metrics that were measured the Record's own decides, whichever way the other points."""
    chrf = replace(METRICS["chrf"], points=1.0, margin=5.0)
    b = bench(task="wmt")
    for variant, bleu, chrf_score in (("softmax", 20.0, 50.0), ("rela", 25.0, 47.0), ("linear", 10.0, 40.0)):
        for seed in range(3):
            tested = [
                Measurement.of("bleu", bleu + seed / 10, split="test"),
                Measurement.of("chrf", chrf_score + seed / 10, split="test"),
            ]
            b.add(b.cell(variant, seed), tested, metric=chrf)
    table = table_of(b.records)
    board = board_for_task(table, board_keys(table)[0], predictions=b.predictions)
    assert metric_of(table, board_keys(table)[0]) == chrf
    assert [row.name for row in board.ranked] == ["softmax", "rela", "linear"], "BLEU would put rela first"
    at = [column.name for column in board.columns].index("verdict")
    verdicts = {row.name: row.entries[at].text for row in board.ranked}
    assert verdicts["rela"] == "within 5 chrF" and verdicts["linear"] == "worse by > 5 chrF"
