"""What each kind of attention does and how well it aligns, as tables below the board of a translation task."""

from dataclasses import asdict

import pytest

from attnbench.bench.board.board import Board
from attnbench.bench.board.quality_notes import setting_words
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.translation.attention_tables import lowest_error
from attnbench.tasks.translation.problem import TranslationRecipe


def figures(zeros: dict[str, float], errors: tuple[float, float, float, float]) -> list[Measurement]:
    """Of a model as a Record has them: overall, by kind, by layer."""
    best, averaged, shifted, shifted_averaged = errors
    kinds = [
        m
        for kind, share in zeros.items()
        for m in (
            Measurement.of("sparsity", share, attention=kind),
            Measurement.of("block_sparsity", 0.98, attention=kind, block=64),
            Measurement.of("block_sparsity", share / 2, attention=kind, block=16),
            Measurement.of("head_diversity", share / 2, attention=kind),
            Measurement.of("sparsity", 0.99, attention=kind, layer=0),
        )
    ]
    alignment = [
        Measurement.of("alignment_error_rate", value, shift=shift, how=how, of_layer=1, **of_head)
        for shift, how, value, of_head in (
            (False, "best head", best, {"of_head": 3}), (False, "averaged weights", averaged, {}),
            (True, "best head", shifted, {"of_head": 0}), (True, "averaged weights", shifted_averaged, {}),
        )
    ]  # fmt: skip
    whole = [Measurement.of("sparsity", 0.5), Measurement.of("head_diversity", 0.25)]
    by_layer = [Measurement.of("alignment_error_rate", 0.01, layer=0, shift=False, how="best head", head=1)]
    return [*whole, *kinds, *alignment, Measurement.of("alignment_error_rate", 0.745, how="diagonal"), *by_layer]


@pytest.fixture
def world(bench) -> object:
    b = bench(task="wmt14-en-de")
    tested = Measurement.of("bleu", 10.0, split="test", set="news", examples=9)
    dense = figures({"encoder": 0.0, "decoder": 0.0, "cross": 0.0}, (0.6, 0.7, 0.4, 0.5))
    sparse = figures({"encoder": 0.2, "decoder": 0.5, "cross": 0.8}, (0.5, 0.6, 0.55, 0.65))
    b.add(b.cell("softmax"), [tested, *dense])
    b.add(b.cell("rela"), [tested, *sparse])
    b.add(b.cell("untrained", lane="baseline"), [tested, *dense])
    return b


def board(b: object) -> Board:
    table = table_of(b.records)
    return board_for_task(table, board_keys(table)[0])


def texts(part: Board) -> list[list[str]]:
    return [[row.name, *(entry.text for entry in row.entries)] for row in part.unranked]


def test_kinds_of_attention_stand_in_a_table_of_their_own(world) -> None:
    part = next(part for part in board(world).parts if part.title == "Attention statistics by kind")
    assert [c.title for c in part.columns] == [
        "attention", "zeros", "zero 16 × 16", "null", "entropy", "head diversity",
    ]  # fmt: skip
    assert texts(part)[:3] == [
        ["rela", "encoder", "20 %", "10 %", "", "", "0.100"],
        ["rela", "decoder", "50 %", "25 %", "", "", "0.250"],
        ["rela", "cross", "80 %", "40 %", "", "", "0.400"],
    ]
    assert [row.name for row in part.unranked] == ["rela"] * 3 + ["softmax"] * 3 + ["untrained"] * 3


def test_alignment_is_told_normal_and_shifted_with_the_diagonal_for_scale(world) -> None:
    part = next(part for part in board(world).parts if part.title.startswith("Alignment"))
    assert [c.title for c in part.columns] == [
        "best head", "averaged weights", "best head, shifted", "averaged weights, shifted",
    ]  # fmt: skip
    assert texts(part)[0] == [
        "rela", "0.500 (layer 1, head 3)", "0.600 (layer 1)", "0.550 (layer 1, head 0)", "0.650 (layer 1)",
    ]  # fmt: skip
    assert texts(part)[-1] == ["diagonal", "0.745", "", "", ""]


def test_the_board_itself_shows_the_whole_model_and_its_lowest_error(world) -> None:
    found = board(world)
    at = {column.name: place for place, column in enumerate(found.columns)}
    row = next(row for row in found.unranked if row.name == "softmax")
    assert [row.entries[at[name]].text for name in ("sparsity", "diversity", "alignment")] == ["50 %", "0.250", "0.400"]


def test_seeds_are_averaged_and_then_no_single_head_is_named(world) -> None:
    tested = Measurement.of("bleu", 10.0, split="test", set="news", examples=9)
    sparse = figures({"encoder": 0.4, "decoder": 0.5, "cross": 0.8}, (0.3, 0.6, 0.2, 0.65))
    world.add(world.cell("rela", 1), [tested, *sparse])
    table = table_of(world.records)
    # of seed 0 the normal head, of seed 1 the shifted one
    assert lowest_error(table, [1, 3]) == pytest.approx((0.5 + 0.2) / 2)
    part = next(part for part in board(world).parts if part.title.startswith("Alignment"))
    assert texts(part)[0][1] == "0.400"


def test_a_preset_of_translation_is_told_in_its_own_words() -> None:
    words = "; ".join(setting_words(asdict(TranslationRecipe())))
    for part in (
        "2 + 2 layers, pre-norm, width 128", "sinusoidal positions, one vocabulary of at most 6,000",
        "at most 192 tokens a sentence, batches of at most 2,048 a side, 2,500 steps", "beam 4, length penalty 0.6",
        "label smoothing 0.1",
    ):  # fmt: skip
        assert part in words
    assert "pooling" not in words and "batch 32" not in words


def test_a_task_without_such_figures_has_no_such_tables(bench) -> None:
    b = bench()
    b.train("softmax", [0.5] * 3)
    assert board(b).parts == () and not any(f.topic in ("AER", "attention") for f in board(b).notes)
