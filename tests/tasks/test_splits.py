"""Splits: which examples share a document, and batches that are the rows they are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from attnbench.tasks.contract import Split, Subset
from attnbench.tasks.problems.language_modeling import Windows
from attnbench.tasks.problems.token_prediction import TokenBatch, TokenExamples

Batch = tuple[npt.NDArray[np.generic], ...]


def test_pairs_of_the_same_texts_share_documents() -> None:
    texts = [b"abc", b"xy", b"xy", b"abc", b"abc", b"z"]
    tokens = np.frombuffer(b"".join(texts), dtype=np.uint8).astype(np.uint16)
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    pairs = Split(tokens=tokens, starts=starts, labels=np.array([0, 1, 1]), towers=2)
    documents = pairs.all().documents()
    assert documents.tolist() == [[0, 1], [1, 0], [0, 2]]
    # numbered among those of the subset, in its order
    assert pairs.subset(np.array([2, 0])).documents().tolist() == [[0, 1], [0, 2]]


# ---------------------------------------------------------------- batches, row by row


def padded(sequences: list[npt.NDArray[np.uint16]], width: int | None = None) -> npt.NDArray[np.uint16]:
    table = np.zeros((len(sequences), max(map(len, sequences), default=0) if width is None else width), dtype=np.uint16)
    for row, sequence in enumerate(sequences):
        table[row, : len(sequence)] = sequence
    return table


def classified(subset: Subset, at: npt.NDArray[np.int64], length: int) -> Batch:
    split = subset.split
    rows = [split.sequence(int(i), tower)[:length] for i in subset.indices[at] for tower in range(split.towers)]
    lengths = np.array([len(row) for row in rows], dtype=np.int64).reshape(-1, split.towers)
    ids = padded(rows, length).reshape(len(at), split.towers, length)
    return ids, lengths, split.labels[subset.indices[at]]


def windowed(subset: Windows, at: npt.NDArray[np.int64], length: int) -> Batch:
    chosen = subset.indices[at]
    longest = int(min(subset.reads[chosen].max(initial=0), length))
    ids, targets = np.zeros((len(at), 1, longest), dtype=np.uint16), np.zeros((len(at), longest), dtype=np.int64)
    for row, index in enumerate(chosen):
        place, reads, scored = (int(each[index]) for each in (subset.places, subset.reads, subset.scored))
        ids[row, 0, :reads] = subset.split.tokens[place : place + reads]
        targets[row, reads - scored : reads] = subset.split.tokens[place + 1 + reads - scored : place + 1 + reads]
    return ids, subset.reads[chosen][:, None], targets


def same(found: Batch, expected: Batch) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


def drawn_split(seed: int, sequences: int, longest: int, towers: int = 1) -> Split:
    draw = np.random.default_rng(seed)
    # empty ones too
    starts = np.append(0, draw.integers(0, longest + 1, sequences * towers).cumsum()).astype(np.int64)
    tokens = draw.integers(1, 2**16, starts[-1]).astype(np.uint16)
    return Split(tokens=tokens, starts=starts, labels=draw.integers(0, 9, sequences), towers=towers)


seeds, lengths = st.integers(0, 2**16), st.integers(1, 30)


@given(seeds, st.integers(1, 12), lengths, lengths, st.sampled_from([1, 2]), st.integers(0, 8))
def test_a_batch_of_classification_is_its_rows(
    seed: int, sequences: int, longest: int, length: int, towers: int, size: int
) -> None:
    subset = drawn_split(seed, sequences, longest, towers).all().spread(9)
    at = np.random.default_rng(seed).integers(0, len(subset), size)
    same(subset.batch(at, length), classified(subset, at, length))


@given(seeds, st.integers(1, 4), lengths, lengths, st.integers(0, 8))
def test_a_batch_of_windows_is_its_rows(seed: int, sequences: int, longest: int, length: int, size: int) -> None:
    windows = Windows.over(drawn_split(seed, sequences, longest), length, max(length // 2, 1))
    if len(windows):
        draw = np.random.default_rng(seed)
        at = draw.integers(0, len(windows), size)
        for each in (
            windows,
            windows.moved(int(draw.integers(length))),
            windows.spread(3).taken(at % min(3, len(windows))),
        ):
            places = at % len(each) if len(each) else at
            same(each.batch(places, length), windowed(each, places, length))


@given(seeds, st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 8))
def test_examples_of_token_prediction_are_their_rows(seed: int, drawn: list[int], size: int) -> None:
    draw = np.random.default_rng(seed)
    answers = [draw.integers(0, 5, (2, 3)) for _ in drawn]
    batches = [
        TokenBatch.of(draw.integers(1, 9, (2, length)), answer, answer)
        for length, answer in zip(drawn, answers, strict=True)
    ]
    examples = TokenExamples.joined(batches)
    examples = replace(examples, indices=examples.indices[::-1].copy())
    at = draw.integers(0, len(examples), size)
    found, lengths = examples.taken(at)
    rows = [examples.split.sequence(int(index)) for index in examples.indices[at]]
    same((found.ids, lengths), (padded(rows), np.array([len(row) for row in rows], dtype=np.int64)))


def test_a_batch_of_a_memory_map_may_be_written_to(tmp_path: Path) -> None:
    split = drawn_split(0, 8, 20)
    np.save(tmp_path / "tokens.npy", split.tokens)
    mapped = replace(split, tokens=np.load(tmp_path / "tokens.npy", mmap_mode="r"))
    for length in (3, 1000):
        ids, _, _ = mapped.all().batch(np.arange(8), length)
        same((ids,), classified(split.all(), np.arange(8), length)[:1])
        assert ids.flags.writeable and type(ids) is np.ndarray
