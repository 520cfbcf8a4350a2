"""Windows over a text: every token predicted once, with the context that is stated, counted by the original text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import Split
from attnbench.tasks.language_modeling.packing import texts
from attnbench.tasks.problems.language_modeling import LANGUAGE_PRESETS, Windows
from attnbench.tasks.problems.vocabulary import BYTES, RAW_BYTES

POEM = "Über allen Gipfeln\nist Ruh,\n\n in allen  Wipfeln\tspürest du\nkaum einen Hauch 😀;\n"


def numbered(*lengths: int) -> Split:
    """Texts whose tokens are 1, 2, 3 … through all of them."""
    starts = np.cumsum([0, *lengths])
    return Split(
        tokens=np.arange(1, starts[-1] + 1, dtype=np.uint16), starts=starts, labels=np.zeros(len(lengths), np.int64)
    )


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(1, 12), st.data())
def test_every_token_but_the_first_of_a_text_is_predicted_once(lengths: list[int], length: int, data: st.DataObject):
    stride = data.draw(st.integers(1, length))
    split = numbered(*lengths)
    windows = Windows.over(split, length, stride)
    ids, reads, targets = windows.batch(np.arange(len(windows)), length)
    predicted = targets[targets > 0]
    expected = [token for a, b in zip(split.starts, split.starts[1:], strict=False) for token in range(a + 2, b + 1)]
    assert sorted(predicted.tolist()) == expected
    # each prediction is of the token after the one that stands in its place
    rows, places = np.nonzero(targets)
    assert (targets[rows, places] == ids[rows, 0, places] + 1).all()
    assert ((ids[:, 0] > 0).sum(1) == reads[:, 0]).all() and reads.max(initial=0) <= length


@given(st.integers(2, 60), st.integers(2, 12), st.data())
def test_beyond_the_first_window_each_prediction_has_the_stated_context(total: int, length: int, data: st.DataObject):
    stride = data.draw(st.integers(1, length))
    windows = Windows.over(numbered(total), length, stride)
    _, _, targets = windows.batch(np.arange(len(windows)), length)
    rows, places = np.nonzero(targets)
    for token, seen in zip(targets[rows, places], places + 1, strict=True):
        assert seen >= min(token - 1, length - stride + 1)


def test_a_text_that_is_shorter_than_the_context_is_one_window() -> None:
    windows = Windows.over(numbered(5, 1, 3), 8, 4)
    assert (windows.places.tolist(), windows.reads.tolist(), windows.scored.tolist()) == ([0, 6], [4, 2], [4, 2])


def test_slices_are_spread_over_the_text_and_keep_its_order() -> None:
    windows = Windows.over(numbered(1001), 10, 10)
    assert len(windows) == 100 and windows.spread(None) is windows and windows.spread(500) is windows
    assert windows.spread(3).indices.tolist() == [0, 50, 99]
    ids, _, _ = windows.spread(3).batch(np.array([2]), 10)
    assert ids[0, 0, 0] == 991


def test_moved_windows_count_in_full_and_stay_inside_the_text() -> None:
    windows = Windows.over(numbered(26), 10, 10).moved(7)
    ids, _, targets = windows.batch(np.arange(3), 10)
    assert ids[:, 0, 0].tolist() == [8, 16, 16] and (targets == ids[:, 0].astype(int) + 1).all()


def test_windows_taken_alone_are_those_of_the_whole_and_move_like_them() -> None:
    windows, at = Windows.over(numbered(101), 10, 10).spread(7), np.array([5, 0, 6])
    alone = windows.taken(at).moved(3).batch(np.arange(3), 10)
    for one, other in zip(windows.moved(3).batch(at, 10), alone, strict=True):
        assert np.array_equal(one, other)
    assert len(windows.taken(at).places) == 3


@pytest.mark.parametrize(("length", "stride"), [(7, 3), (5, 5), (200, 100)])
def test_characters_and_words_are_those_of_the_original_text(length: int, stride: int) -> None:
    windows = Windows.over(texts([POEM.encode()]), length, stride)
    ids, _, targets = windows.batch(np.arange(len(windows)), length)
    # the first byte is given; it begins one character and one word
    assert BYTES.characters[targets].sum() == len(POEM) - 1
    assert RAW_BYTES.characters[targets].sum() == len(POEM.encode()) - 1
    assert (BYTES.words(ids[:, 0], targets) * (targets > 0)).sum() == len(POEM.split()) + POEM.count("\n") - 1


def test_presets_of_language_take_their_own_parameters() -> None:
    recipe = LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse("quick[stride=16,length=32,positions=none]"))
    assert (recipe.stride, recipe.length, recipe.positions) == (16, 32, "none")
    assert LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse("quick[stride=32,length=32]")).length == 32
    with pytest.raises(SelectionError, match="stride of at most the length, got stride=64, length=32"):
        LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse("quick[length=32]"))
    with pytest.raises(SelectionError, match="has no parameter 'strides'"):
        LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse("quick[strides=4]"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [("longest=64", "longest of at least the length, or 0, got longest=64, length=128"),
     ("longest=256", "other positions than learned: those from 128 to 256 are tested and never trained")],
)  # fmt: skip
def test_a_longer_test_is_refused_where_it_cannot_be(changed: str, said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse(f"quick[{changed}]"))


def test_a_slice_of_the_training_text_is_refused_since_none_is_taken() -> None:
    with pytest.raises(SelectionError, match="expected no train_examples: training reads the text from end to end"):
        LANGUAGE_PRESETS["quick"].with_overrides(Spec.parse("quick[train_examples=100]"))
