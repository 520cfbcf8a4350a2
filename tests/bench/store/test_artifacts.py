"""Results by example: what they may hold."""

import io

import numpy as np
import pytest

from attnbench.bench.store.artifacts import MOST_EXAMPLES, results_of
from attnbench.bench.store.packs import DamagedArtifact


def packed(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


RIGHT = np.array([1, 0, 1], dtype=np.uint8)


def test_documents_come_with_the_results() -> None:
    documents = np.array([[0, 1], [0, 2], [3, 3]], dtype=np.int32)
    found = results_of(packed(correct=RIGHT, documents=documents))
    assert found.values.tolist() == [1, 0, 1]
    assert found.documents is not None and found.documents.tolist() == documents.tolist()
    assert results_of(packed(correct=RIGHT)).documents is None


@pytest.mark.parametrize(
    "documents",
    [
        np.zeros((2, 2), dtype=np.int32),
        np.zeros((3, 3), dtype=np.int32),
        np.zeros(3, dtype=np.int32),
        np.zeros((3, 2), dtype=np.float64),
        np.full((3, 2), -1, dtype=np.int32),
        # a number that would make an array of gigabytes
        np.full((3, 2), 2**31 - 1, dtype=np.int32),
    ],
)
def test_documents_of_another_shape_kind_or_range_are_damaged(documents: np.ndarray) -> None:
    with pytest.raises(DamagedArtifact, match="documents"):
        results_of(packed(correct=RIGHT, documents=documents))


def test_shares_of_right_answers_come_with_the_setting_of_each_example() -> None:
    shares, setting = np.array([0.25, 1.0, 0.0]), np.array([0, 0, 1], dtype=np.uint8)
    found = results_of(packed(correct=shares, setting=setting))
    assert found.values.tolist() == shares.tolist()
    assert found.setting is not None and found.setting.tolist() == [0, 0, 1]
    assert results_of(packed(correct=RIGHT)).setting is None


@pytest.mark.parametrize("arrays", [
    {"correct": np.array([0.5, 1.5])}, {"correct": np.array([0.5, np.nan])}, {"correct": np.array([-0.5, 0.5])},
    {"correct": np.array([0.5, 0.5], dtype=np.float32)},
    {"correct": np.array([0.5, 0.5]), "setting": np.zeros(3, dtype=np.uint8)},
    {"correct": np.array([0.5, 0.5]), "setting": np.zeros(2)},
], ids=str)  # fmt: skip
def test_what_is_no_share_or_no_setting_is_damaged(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(DamagedArtifact):
        results_of(packed(**arrays))


def test_damaged_results_are_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that unpacks to 128 million examples costs 0.4 s, and 3,000 Records may name it."""
    content = packed(correct=np.zeros(MOST_EXAMPLES + 1, dtype=np.uint8))
    with pytest.raises(DamagedArtifact, match="no results of 1 to"):
        results_of(content)
    monkeypatch.setattr("attnbench.bench.store.artifacts.arrays_of", lambda *_: pytest.fail("it was unpacked again"))
    with pytest.raises(DamagedArtifact, match="no results of 1 to"):
        results_of(content)
