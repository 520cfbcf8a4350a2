"""Alignment error rate, on cases worked by hand."""

import math

import numpy as np
import pytest

from attnbench.bench.wings.translation.alignment import (
    alignment_error_rate,
    diagonal,
    layer_errors,
    links,
    normalised,
    shifted,
)
from attnbench.bench.wings.translation.attention import offset_weights
from attnbench.tasks.translation.problem import GoldLinks


def gold(sure, possible=()):
    return GoldLinks(sure=frozenset(sure), possible=frozenset(sure) | frozenset(possible))


@pytest.mark.parametrize(
    ("predicted", "its", "expected"),
    [
        ({(0, 0), (1, 1)}, gold([(0, 0), (1, 1)]), 0.0),
        ({(0, 1), (1, 0)}, gold([(0, 0), (1, 1)]), 1.0),
        # |A & S| = 1, |A & P| = 2, |A| = 3, |S| = 2
        ({(0, 0), (1, 2), (2, 2)}, gold([(0, 0), (1, 1)], [(1, 2)]), 1 - 3 / 5),
        # possible links that are not found cost nothing
        ({(0, 0)}, gold([(0, 0)], [(1, 1), (2, 2)]), 0.0),
        # no link at all: only recall suffers, 1 - 0 / |S|
        (set(), gold([(0, 0)]), 1.0),
    ],
)
def test_hand_worked_sentences(predicted, its, expected):
    assert alignment_error_rate([frozenset(predicted)], [its]) == pytest.approx(expected)


def test_the_rate_is_of_all_links_together_and_not_the_mean_of_sentences():
    predicted = [frozenset({(0, 0)}), frozenset({(0, 1), (1, 1), (2, 1), (3, 1)})]
    its = [gold([(0, 0)]), gold([(0, 0), (1, 1)])]
    assert alignment_error_rate(predicted, its) == pytest.approx(1 - (2 + 2) / (5 + 3))
    assert math.isnan(alignment_error_rate([frozenset()], [gold([])]))


def test_words_are_linked_where_any_of_their_subwords_are_and_ends_never():
    # source: words 0 0 1 END, target: words 0 1 1 END
    weights = np.array(
        [
            [0.1, 0.7, 0.1, 0.1],
            [0.1, 0.2, 0.6, 0.1],
            [0.6, 0.2, 0.1, 0.1],
            [0.0, 0.0, 0.9, 0.1],
        ]
    )
    assert links(weights, [0, 0, 1, -1], [0, 1, 1, -1]) == {(0, 0), (1, 1), (0, 1)}
    weights[0] = [0.0, 0.1, 0.1, 0.8]
    assert links(weights, [0, 0, 1, -1], [0, 1, 1, -1]) == {(1, 1), (0, 1)}, "a word that looks at END links nothing"


def test_a_null_row_links_nothing():
    weights = np.array([[0.0, 0.0], [0.0, 0.3]])
    assert links(weights, [0, 1], [0, 1]) == {(1, 1)}


def test_a_shape_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="expected weights"):
        links(np.zeros((2, 3)), [0, 1], [0, 1])


def test_shifted_rows_are_those_of_the_step_whose_input_the_token_is():
    weights = np.arange(6.0).reshape(3, 2)
    assert shifted(weights).tolist() == [[2, 3], [4, 5], [0, 0]]


def test_every_layer_head_and_shift_is_scored():
    # one sentence of three words a side and END; head 0 looks at the right word, head 1 one step too late, layer 1 none
    right = np.eye(4)
    late = np.concatenate([np.zeros((1, 4)), np.eye(4)[:3]])
    weights = np.stack([np.stack([right, late]), np.zeros((2, 4, 4))])
    words = [0, 1, 2, -1]
    found = layer_errors([weights], [words], [words], [gold([(0, 0), (1, 1), (2, 2)])])
    by_place = {(each.layer, each.shift): each for each in found}
    assert by_place[0, False].heads == pytest.approx((0.0, 1.0))
    assert by_place[0, True].heads == pytest.approx((1.0, 0.0))
    assert (by_place[0, False].best, by_place[0, True].best) == (0, 1)
    assert by_place[0, False].mean == 0.5
    assert by_place[1, False].heads == (1.0, 1.0)


def test_the_averaged_weights_are_means_of_normalised_heads():
    # the loud head would drown the others if rows were not normalised first
    loud, quiet = np.array([[9.0, 8.0]]), np.array([[0.0, 0.2]])
    weights = np.stack([loud, quiet])[None]
    (plain, _) = layer_errors([weights], [[0, 1]], [[0]], [gold([(1, 0)])])
    assert plain.heads == (1.0, 0.0) and plain.averaged == 0.0
    assert normalised(np.array([[0.0, 0.0], [1.0, 3.0]])).tolist() == [[0, 0], [0.25, 0.75]]


def test_the_diagonal_aligner_links_each_source_word_once():
    assert diagonal(1, 1) == {(0, 0)} and diagonal(1, 4) == {(0, 0)} and diagonal(3, 0) == frozenset()
    assert sorted(diagonal(4, 7)) == [(0, 0), (1, 2), (2, 4), (3, 6)]


def test_weight_at_an_offset_is_counted_where_there_is_a_key():
    weights = np.maximum(np.random.default_rng(0).normal(-0.6, 1.0, (4, 6, 6)), 0.0)
    sums, rows = offset_weights(weights, (-7, -1, 0, 2))
    for at, offset in enumerate((-7, -1, 0, 2)):
        places = [i for i in range(6) if 0 <= i + offset < 6]
        assert rows[at] == len(places)
        for head in range(4):
            assert sums[head, at] == pytest.approx(sum(weights[head, i, i + offset] for i in places))


def test_a_head_that_looks_one_back_is_found_there():
    weights = np.zeros((1, 5, 5))
    weights[0, range(1, 5), range(4)] = 1.0
    sums, rows = offset_weights(weights, (-1, 0, 1))
    assert (sums[0] / rows).tolist() == [1.0, 0.0, 0.0]
