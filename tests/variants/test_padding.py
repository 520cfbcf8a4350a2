"""Padded slots: what a weight of zero stops is left as it is, and only what it does not stop is cleared."""

import pytest
import torch

from attnbench.variants.padding import LARGEST, clear_padding, clear_queries

VALID = torch.tensor([[True, True, False], [True, False, False]])


def filled(padded, shape=(2, 1, 3, 4)):
    """Ones at real places and `padded` at the others."""
    return torch.where(VALID[:, None, :, None], 1.0, padded).expand(*shape).clone()


@pytest.mark.parametrize("entry", [0.0, 1.0, -300.0, 9_999.0, -10_000.0])
def test_entries_of_usual_size_are_left_as_they_are(entry):
    # they are what a model computes from a padding token; other values there would be another model
    x = filled(entry)
    for found in clear_padding(x, x, x, VALID, same_sequence=True):
        assert torch.equal(found, x)
    assert torch.equal(clear_queries(x, VALID), x)


@pytest.mark.parametrize("entry", [10_001.0, -1e5, 1e30, float("inf"), float("nan")])
def test_entries_that_a_weight_of_zero_does_not_stop_become_zeros(entry):
    x = filled(entry)
    for found in clear_padding(x, x, x, VALID, same_sequence=True):
        assert torch.equal(found, filled(0.0))
    assert torch.equal(clear_queries(x, VALID), filled(0.0))
    # queries of another sequence are all real
    query, *_ = clear_padding(x, x, x, VALID, same_sequence=False)
    assert torch.equal(query, x) or query.isnan().any()


def test_only_the_padded_slot_that_holds_such_an_entry_is_cleared():
    x = filled(2.0)
    x[1, 0, 1, 3] = 2 * LARGEST
    expected = filled(2.0)
    expected[1, 0, 1] = 0.0
    assert torch.equal(clear_padding(x, x, x, VALID, same_sequence=True)[1], expected)
    # a real key keeps even that
    x = filled(2.0)
    x[0, 0, 0, 0] = 2 * LARGEST
    assert torch.equal(clear_padding(x, x, x, VALID, same_sequence=True)[1], x)


def test_fewer_queries_are_the_last_positions():
    key = filled(1.0)
    query = torch.full((2, 1, 2, 4), float("inf"))
    found, *_ = clear_padding(query, key, key, VALID, same_sequence=True)
    assert found.isinf().all(-1)[:, 0].tolist() == [[True, False], [False, False]]
