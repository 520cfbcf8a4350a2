"""What each test set says of every variant: the paired bootstrap against sacreBLEU's own, and what it says in words."""

import io
import math

import numpy as np
import pytest

from attnbench.bench.board.board import Board, TableCell
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.key import board_keys
from attnbench.bench.stats.bootstrap import resampled_scores
from attnbench.bench.store.artifacts import ExampleResults, StoredSets
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.translation.bleu import score_translations
from attnbench.bench.wings.translation.test_sets import advantage, scores_by_set

sacrebleu = pytest.importorskip("sacrebleu", reason="the extra translation is not installed")

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "off", "two", "birds", "sang", "there"]
BLEU = METRICS["bleu"]
SETS = {"news": 90, "pictures": 60}


def references(name: str) -> list[str]:
    random = np.random.default_rng([7, SETS[name]])
    return [" ".join(random.choice(WORDS, random.integers(5, 16))) for _ in range(SETS[name])]


def translations(name: str, wrong: float, seed: int) -> list[str]:
    """The references with a share of words drawn anew: sentences that are hard for one are not so for another."""
    random = np.random.default_rng([seed, SETS[name]])
    return [
        " ".join(w if random.random() > wrong else str(random.choice(WORDS)) for w in line.split())
        for line in references(name)
    ]


WRONG = {"softmax": 0.30, "rela": 0.31, "entmax15": 0.12, "copy": 0.6, "untrained": 0.95}


class Translated:
    """Records of translations on two sets, with the statistics of their sentences."""

    def __init__(self, bench: object, seeds: int = 1, statistics: bool = True):
        self.bench = bench(task="wmt14-en-de")
        self.kept: dict[str, dict[str, np.ndarray]] = {}
        for variant, wrong in WRONG.items():
            baseline = variant in ("copy", "untrained")
            for seed in range(1 if baseline else seeds):
                drawn = {name: translations(name, wrong, 10 * seed + len(variant)) for name in SETS}
                found = {name: score_translations(drawn[name], references(name), "en") for name in SETS}
                file = f"{variant}{seed}"
                if statistics:
                    self.kept[file] = {name: each.statistics for name, each in found.items()}
                cell = self.bench.cell(variant, seed, lane="baseline" if baseline else "train")
                self.bench.add(
                    cell,
                    [
                        Measurement.of(quantity, value, split="test", set=name, examples=SETS[name])
                        for name, each in found.items()
                        for quantity, value in (("bleu", each.bleu), ("chrf", each.chrf))
                    ],
                    artifacts={"predictions": file},
                )
        self.table = table_of(self.bench.records)
        self.board_key = board_keys(self.table)[0]

    def sets(self, name: str) -> dict[str, np.ndarray]:
        return self.kept.get(name, {})

    def board(self) -> Board:
        return board_for_task(self.table, self.board_key, sets=self.sets)

    def tested(self):
        return scores_by_set(self.table, self.board_key, BLEU, self.sets)


def entry(board: Board, variant: str, column: str) -> TableCell:
    row = next(row for row in (*board.unranked, *board.baselines) if row.name == variant)
    return row.entries[[c.name for c in board.columns].index(column)]


def test_intervals_and_verdicts_are_those_of_sacrebleus_paired_bootstrap(bench) -> None:
    from sacrebleu.metrics import BLEU as SacreBLEU
    from sacrebleu.significance import PairedTest

    world = Translated(bench)
    for name in SETS:
        tested, board = world.tested()[name], next(part for part in world.board().parts if part.title.startswith(name))
        systems = [(each, translations(name, WRONG[each], len(each))) for each in ("softmax", "rela", "entmax15")]
        test = PairedTest(systems, {"BLEU": SacreBLEU()}, [references(name)], test_type="bs", n_samples=600)
        _, results = test()
        for variant, result in zip(results["System"], results["BLEU"], strict=True):
            variant = variant.removeprefix("Baseline: ")
            level = tested[variant].trials.level()
            assert level.value == pytest.approx(result.score, abs=1e-9)
            assert (level.high - level.low) / 2 == pytest.approx(result.ci, rel=0.2), (name, variant)
            if variant != "softmax":
                gap = advantage(tested[variant], tested["softmax"]).interval()
                assert (gap.low > 0 or gap.high < 0) == (result.p_value < 0.05), (name, variant)
        assert entry(board, "entmax15", "verdict").text == "better than copying, an untrained model and softmax"
        assert "undecided against softmax" in entry(board, "rela", "verdict").text


def test_a_table_is_corrected_as_the_board_is(bench) -> None:
    world = Translated(bench, seeds=3)
    board = world.board()
    # a baseline is judged as a variant that is not declared, by the pairs of eight
    for name, part in zip(SETS, board.parts, strict=True):
        tested = world.tested()[name]
        for other in ("copy", "untrained"):
            shown = entry(part, "rela", f"vs_{other}")
            found = advantage(tested["rela"], tested[other]).interval(1 - 0.05 / 28)
            assert (shown.low, shown.high) == pytest.approx((found.low, found.high))
    # the ranked set is the board's own: one number, one interval
    ranked = board.parts[0]
    for name in ("rela", "entmax15"):
        row = next(row for row in board.ranked if row.name == name)
        for column, of_board in (("vs_softmax", "gap"), ("bleu", "bleu")):
            assert entry(ranked, name, column).text == board.cell(row, of_board).text, (name, column)
    (note,) = [f.text for f in board.notes if f.topic == "test sets"]
    assert "corrected as on the board" in note


def test_every_set_has_its_table_the_ranked_one_first_with_baselines_below(bench) -> None:
    parts = Translated(bench).board().parts
    assert [part.title for part in parts] == ["news, 90 sentences", "pictures, 60 sentences"]
    assert [[row.name for row in (*part.unranked, *part.baselines)] for part in parts] == [
        ["entmax15", "rela", "softmax", "copy", "untrained"]
    ] * 2
    assert [c.title for c in parts[0].columns] == [
        "BLEU", "chrF", "vs copying", "vs untrained", "vs softmax", "verdict",
    ]  # fmt: skip
    assert entry(parts[0], "softmax", "vs_softmax").text == "reference"
    assert entry(parts[0], "softmax", "verdict").text == "better than copying and an untrained model"
    assert entry(parts[1], "rela", "chrf").value == pytest.approx(
        sacrebleu.corpus_chrf(translations("pictures", 0.31, 4), [references("pictures")]).score
    )


def test_several_seeds_add_their_noise_to_that_of_sentences(bench) -> None:
    news = Translated(bench, seeds=3).tested()["news"]
    found = advantage(news["rela"], news["copy"])
    scores = news["rela"].trials.scores
    assert found.value == pytest.approx(np.mean(scores) - news["copy"].trials.scores[0])
    of_seeds, of_sentences = found.noise
    assert of_seeds.freedom == 2 and of_seeds.error == pytest.approx(np.std(scores, ddof=1) / math.sqrt(3))
    drawn = news["rela"].trials.draws - news["copy"].trials.draws[:, :1]
    shared = (3 * drawn.mean(axis=1).var(ddof=1) - drawn.var(axis=0, ddof=1).mean()) / 2
    assert of_sentences.error == pytest.approx(shared**0.5)
    notes = [f.text for f in Translated(bench, seeds=3).board().notes if f.topic == "test sets"]
    assert "over sentences and seeds (Student's t)" in notes[0]


def test_without_statistics_nothing_is_claimed(bench) -> None:
    board = Translated(bench, statistics=False).board()
    assert entry(board.parts[0], "entmax15", "vs_copy") == entry(board.parts[0], "entmax15", "verdict") == TableCell()
    assert any(f.warning and "no statistics of sentences" in f.text for f in board.notes)


def test_statistics_of_other_sentences_or_scores_are_not_paired(bench) -> None:
    world = Translated(bench)
    other = world.kept["rela0"]["news"].copy()
    world.kept["rela0"]["news"] = other[::-1]
    news = world.tested()["news"]
    # the same score from other sentences: the words of the references do not agree
    assert news["rela"].lengths is not None and advantage(news["rela"], news["softmax"]) is None
    other[:, 2] = 0
    world.kept["rela0"]["news"] = other
    assert world.tested()["news"]["rela"].lengths is None


def test_a_task_without_named_sets_has_no_such_tables(bench) -> None:
    b = bench(task="lm")
    b.score("softmax", "bits_per_character", [1.0])
    table = table_of(b.records)
    assert board_for_task(table, board_keys(table)[0]).parts == ()


def test_statistics_are_read_by_set_and_what_is_no_such_file_is_absent(tmp_path) -> None:
    store = Store(tmp_path, on_warning=lambda text: None)
    rows, numbers = np.arange(40.0).reshape(4, 10), np.array([1, 0, 1, 0], dtype=np.uint8)

    def kept(**arrays: np.ndarray) -> dict[str, np.ndarray]:
        file = io.BytesIO()
        np.savez(file, **arrays)
        return StoredSets(store)(store.put_artifact(file.getvalue(), ".npz"))

    names = np.array(["news", "pictures"])
    found = kept(sentence_statistics=rows, sentence_sets=numbers, set_names=names)
    assert list(found) == ["news", "pictures"] and np.array_equal(found["pictures"], rows[[0, 2]])
    assert kept(sentence_statistics=rows, sentence_sets=numbers[:3], set_names=names) == {}
    assert kept(sentence_statistics=rows, sentence_sets=numbers, set_names=np.array([1, 2])) == {}
    assert kept(statistics=rows) == StoredSets(store)("0" * 24 + ".npz") == StoredSets(store)("../../x") == {}


def test_a_baseline_has_the_interval_of_its_sentences(bench) -> None:
    world = Translated(bench)
    kept = {name: ExampleResults(sets["news"]) for name, sets in world.kept.items()}
    found = board_for_task(world.table, world.board_key, predictions=kept.get)
    drawn = resampled_scores("bleu", world.kept["copy0"]["news"])
    shown = entry(found, "copy", "bleu")
    assert (shown.high - shown.low) / 2 == pytest.approx(1.96 * drawn.std(ddof=1), rel=1e-3)
