"""The order of examples: every example once an epoch, epochs in orders of their own, places that span a data set."""

import numpy as np
import pytest

from attnbench.bench.core.order import evenly_spaced, order


def epochs(count, batch, number, **named):
    """The first `number` epochs, one a row; `batch` need not divide `count`."""
    steps = -(-number * count // batch)
    axes = {"task": "toy", "seed": 0} | named
    drawn = np.concatenate([order(step, batch, count, **axes) for step in range(steps)])
    return drawn[: number * count].reshape(number, count)


@pytest.mark.parametrize(("count", "batch"), [(20, 5), (20, 7), (7, 20)])
def test_every_epoch_has_every_example_once_and_an_order_of_its_own(count, batch):
    found = epochs(count, batch, 4)
    assert np.array_equal(np.sort(found, axis=1), np.tile(np.arange(count), (4, 1)))
    assert len({tuple(row) for row in found}) == 4


def test_tasks_and_seeds_have_orders_of_their_own_that_do_not_depend_on_the_batch():
    found = [epochs(30, 6, 1, task=task, seed=seed)[0] for task in ("a", "b") for seed in (0, 1)]
    assert len({tuple(row) for row in found}) == 4
    assert np.array_equal(found[0], epochs(30, 11, 1, task="a")[0])


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [(10, 4, [0, 3, 6, 9]), (9, 3, [0, 4, 8]), (5, 5, [0, 1, 2, 3, 4]), (3, 8, [0, 1, 2]), (100, 1, [0])],
)
def test_places_span_the_whole_at_equal_distances(count, wanted, expected):
    assert evenly_spaced(count, wanted).tolist() == expected
