"""Splits: which examples share a document."""

import numpy as np

from attnbench.tasks.contract import Split


def test_pairs_of_the_same_texts_share_documents() -> None:
    texts = [b"abc", b"xy", b"xy", b"abc", b"abc", b"z"]
    tokens = np.frombuffer(b"".join(texts), dtype=np.uint8).astype(np.uint16)
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    pairs = Split(tokens=tokens, starts=starts, labels=np.array([0, 1, 1]), towers=2)
    documents = pairs.all().documents()
    assert documents.tolist() == [[0, 1], [1, 0], [0, 2]]
    # numbered among those of the subset, in its order
    assert pairs.subset(np.array([2, 0])).documents().tolist() == [[0, 1], [0, 2]]
