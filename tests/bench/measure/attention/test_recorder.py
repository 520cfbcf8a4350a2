"""Maps that are kept are the weights themselves, or means of them over squares."""

import io

import numpy as np
import pytest
import torch

from attnbench.bench.core.order import evenly_spaced
from attnbench.bench.measure.attention.recorder import attention_maps, shrunk
from attnbench.bench.train.objectives.classification import ClassificationObjective
from attnbench.tasks.contract import Classification, Recipe, Split
from attnbench.variants import build

CPU = torch.device("cpu")


def kept(variant: str, length: int, towers: int = 1) -> dict[str, np.ndarray] | None:
    recipe = Recipe(length=length, width=16, heads=2, feed_forward=32)
    tokens = np.random.default_rng(0).integers(1, 9, 4 * length).astype(np.uint16)
    starts = np.array([0, length, 2 * length, 3 * length, 4 * length - 5])
    split = Split(tokens=tokens, starts=starts, labels=np.zeros(4 // towers, dtype=np.int64), towers=towers)
    torch.manual_seed(0)
    kind = ClassificationObjective(Classification(vocabulary=9, classes=2, towers=towers), recipe)
    subset = split.all()
    batch = kind.batch(subset, evenly_spaced(len(subset), 2), CPU)
    content = attention_maps(kind.model(lambda shape: build(variant, shape), 0), batch)
    return None if content is None else dict(np.load(io.BytesIO(content), allow_pickle=False))


def test_short_sequences_are_kept_entry_by_entry() -> None:
    found = kept("softmax", 20)
    assert found["maps"].shape == (2, 2, 2, 20, 20)
    assert found["maps"].dtype == np.float16
    assert found["lengths"].tolist() == [20, 15]
    np.testing.assert_allclose(found["maps"].sum(-1, dtype=np.float64), 1.0, atol=5e-3)
    assert (found["maps"][1, ..., 15:] == 0).all()
    assert (found["tokens"][1, 15:] == 0).all()


def test_long_sequences_shrink_to_sixty_four() -> None:
    found = kept("sparsemax", 300)
    assert found["maps"].shape == (2, 2, 2, 60, 60)
    np.testing.assert_allclose(found["maps"][0].sum(-1, dtype=np.float64) * 5, 1.0, atol=0.02)


def test_of_a_pair_the_first_sequence_is_shown() -> None:
    found = kept("softmax", 20, towers=2)
    assert found["maps"].shape[0] == 2
    assert found["lengths"].tolist() == [20, 20]


def test_a_variant_without_weights_has_no_maps() -> None:
    assert kept("fastformer", 20) is None


@pytest.mark.parametrize("size", [7, 8])
def test_squares_at_the_edge_are_means_of_what_there_is(size: int) -> None:
    weights = torch.rand(1, 1, size, size)
    expected = torch.stack(
        [
            torch.stack([weights[0, 0, i : i + 4, j : j + 4].mean() for j in range(0, size, 4)])
            for i in range(0, size, 4)
        ]
    )
    torch.testing.assert_close(shrunk(weights, 4)[0, 0], expected)
