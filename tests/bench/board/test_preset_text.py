"""A preset in words: each kind of problem says what is true of it, and nothing that is not."""

from dataclasses import asdict

import pytest

from attnbench.bench.board.quality_notes import setting_words
from attnbench.tasks.contract import Recipe
from attnbench.tasks.problems.language_modeling import LanguageRecipe
from attnbench.tasks.problems.token_prediction import TokenRecipe

SAID = {
    Recipe: ("2 layers, width 64, 2 heads", "learned positions, mean pooling", "length 512, batch 32, 200 steps"),
    LanguageRecipe: (
        "2 causal layers, width 128", "output tied", "context 128, evaluated in windows 64 apart, batch 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("recipe", SAID)
def test_each_kind_says_what_is_true_of_it(recipe: type[Recipe]) -> None:
    words = "; ".join(setting_words(asdict(recipe())))
    for part in SAID[recipe]:
        assert part in words
    assert "learning rate" in words and "float32" in words
    assert ("pooling" in words) == (recipe is Recipe), "only a classifier pools"


def test_one_layer_one_head_and_no_positions_read_as_such() -> None:
    words = "; ".join(setting_words(asdict(TokenRecipe(layers=1, heads=1))))
    assert "1 causal layer, width" in words and "1 head, feed-forward" in words and "; no positions, an output" in words


def test_steps_of_several_batches_and_averaged_states_are_said() -> None:
    words = setting_words(asdict(Recipe(accumulate=4, averaged=5)))
    assert "4 batches to a step" in words and "the last 5 evaluated states averaged" in words
    assert not [each for each in setting_words(asdict(Recipe())) if "averaged" in each or "to a step" in each]


def test_a_record_from_before_a_field_was_there_reads_as_before() -> None:
    setting = {name: value for name, value in asdict(Recipe()).items() if name not in ("accumulate", "averaged")}
    assert setting_words(setting) == setting_words(asdict(Recipe()))


def test_what_was_not_recorded_is_not_made_up() -> None:
    setting = asdict(LanguageRecipe())
    del setting["width"]
    assert setting_words(setting) == ["the full preset was not recorded"]
