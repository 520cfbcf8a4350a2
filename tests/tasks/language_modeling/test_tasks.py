"""Tasks of language modelling: official layouts and splits, what is missing and where, and n-gram baselines."""

import math
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Dataset, Task
from attnbench.tasks.language_modeling import enwik8
from attnbench.tasks.language_modeling.baselines import bigram, unigram
from attnbench.tasks.language_modeling.books import PG19, GutenbergCharacters, read_folders
from attnbench.tasks.language_modeling.enwik8 import Enwik8
from attnbench.tasks.language_modeling.tinyshakespeare import REMOTE, TinyShakespeare
from attnbench.tasks.language_modeling.wikitext import WikiText2, WikiText2Characters, WikiText103
from attnbench.tasks.problems.language_modeling import LanguageRecipe, Windows
from attnbench.tasks.problems.vocabulary import RAW_BYTES

RECIPE = LanguageRecipe(length=16, stride=8, validation_examples=None, test_examples=None)
TEXT = b"the cat sat on the mat; the rat sat on the cat.\n" * 20


def text_of(windows: object) -> bytes:
    return (np.asarray(windows.split.tokens) - 1).astype(np.uint8).tobytes()


def loaded(task: Task, place: DataPlace, recipe: LanguageRecipe = RECIPE) -> Dataset:
    return task.load(place, recipe, 0, "validation")


@pytest.fixture
def books(place: DataPlace) -> list[bytes]:
    folder = place.root / "gutenberg"
    folder.mkdir()
    found = [TEXT, "Sphäre ".encode() * 100]
    for name, text in zip(("a.txt", "b.txt"), found, strict=True):
        (folder / name).write_bytes(text)
    return found


def test_of_each_book_the_end_is_held_out(place: DataPlace, books: list[bytes]) -> None:
    data = loaded(GutenbergCharacters(), place)
    cuts = [(len(book) * 18 // 20, len(book) * 19 // 20) for book in books]
    assert text_of(data.train) == b"".join(book[:a] for book, (a, _) in zip(books, cuts, strict=True))
    assert text_of(data.validation) == b"".join(book[a:b] for book, (a, b) in zip(books, cuts, strict=True))
    assert text_of(data.test) == b"".join(book[b:] for book, (_, b) in zip(books, cuts, strict=True))
    assert data.provenance.fidelity == "surrogate" and "not PG-19" in data.provenance.notes[0]
    assert len(data.test.split) == 2, "each text is evaluated by itself"
    assert len(data.train.split) == 1, "training reads them end to end"


def test_slices_are_told_and_the_test_slice_knows_no_seed(place: DataPlace, books: list[bytes]) -> None:
    recipe = LanguageRecipe(length=16, stride=8, validation_examples=3, test_examples=2)
    first, second = (GutenbergCharacters().load(place, recipe, seed, "validation") for seed in (0, 1))
    assert np.array_equal(first.test.indices, second.test.indices)
    whole = Windows.over(first.test.split, 16, 8)
    assert f"test: 2 windows spread over {len(whole)}" in first.provenance.notes
    assert first.provenance.counts == {"train": len(first.train), "validation": 3, "test": 2}
    chosen = GutenbergCharacters().load(place, recipe, 0, "test")
    assert chosen.validation is chosen.test


@pytest.mark.parametrize("task", [WikiText2(subwords=0), WikiText2Characters()])
def test_wikitext_is_its_three_raw_files(place: DataPlace, task: Task) -> None:
    folder = place.root / "wikitext-2-raw"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.raw").write_bytes(split.encode() * 30)
    data = loaded(task, place)
    assert [text_of(part)[:6] for part in (data.train, data.validation, data.test)] == [b"traint", b"validv", b"testte"]
    assert data.provenance.fidelity == "official"


def test_a_missing_training_file_is_named_with_its_place_and_no_surrogate_takes_its_name(place: DataPlace) -> None:
    folder = place.root / "wikitext-2-raw"
    folder.mkdir()
    for split in ("valid", "test"):
        (folder / f"wiki.{split}.raw").write_bytes(TEXT)
    with pytest.raises(DataError) as caught:
        loaded(WikiText2(), place)
    reasons = " ".join(caught.value.__notes__)
    assert "wiki.train.raw" in reasons and str(place.root) in reasons and "gutenberg-char" in reasons
    [way] = WikiText2().availability(place)
    assert not way.ready and way.detail == f"{folder} lacks wiki.train.raw"
    assert "wikitext-2-raw-v1.zip" in way.advice


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        (WikiText103(), "wikitext-103-raw"), (PG19(), "pg19"), (Enwik8(), "enwik8.zip"),
        (GutenbergCharacters(), "gutenberg"), (TinyShakespeare(), "tinyshakespeare.txt"),
    ],
)  # fmt: skip
def test_without_data_the_error_says_what_is_wanted_and_where(place: DataPlace, task: Task, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted) as caught:
        loaded(task, place)
    assert str(place.root) in " ".join(caught.value.__notes__)
    assert not any(way.ready for way in task.availability(place))


def test_enwik8_is_divided_from_its_end_and_counts_bytes(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BYTES", 1000), ("VALIDATION", 50), ("TEST", 50)):
        monkeypatch.setattr(enwik8, name, value)
    text = bytes(range(32, 232)) * 5
    (place.root / "enwik8").write_bytes(text)
    data = loaded(Enwik8(), place)
    assert (text_of(data.train), text_of(data.validation), text_of(data.test)) == (
        text[:900],
        text[900:950],
        text[950:],
    )
    assert isinstance(data.test, Windows) and data.test.vocabulary is RAW_BYTES
    (place.root / "enwik8").write_bytes(text[:-1])
    with pytest.raises(DataError, match=r"of 1,000 bytes, got 999"):
        loaded(Enwik8(), place)


def test_pg19_is_a_file_for_each_book(place: DataPlace) -> None:
    for split in ("train", "validation", "test"):
        (place.root / "pg19" / split).mkdir(parents=True)
        for number in (10, 2):
            (place.root / "pg19" / split / f"{number}.txt").write_bytes(f"{split} {number}".encode())
    data = loaded(PG19(), place)
    assert text_of(data.train) == b"train 10train 2" and len(data.test.split) == 2
    assert PG19().recipe(Spec("base")).length == 8192


def test_books_are_read_one_by_one_and_all_of_them_are_never_in_memory(place: DataPlace) -> None:
    book, count = bytes(range(1, 201)) * 500, 40
    for split, books in (("train", count), ("validation", 1), ("test", 0)):
        folder = place.root / "pg19" / split
        folder.mkdir(parents=True)
        for number in range(books):
            (folder / f"{number:02}.txt").write_bytes(book[number:])
    place.cache.mkdir()
    tracemalloc.start()
    try:
        found = read_folders(place.root / "pg19", "pg19 tree", {}, place.cache)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    train = found.splits["train"]
    assert peak < len(book) * count / 4, "two bytes a token would be eight times as much"
    assert isinstance(train.tokens, np.memmap) and len(train) == count
    assert [train.sequence(at)[0] for at in (0, 1, 39)] == [2, 3, 41] and train.starts[-1] == len(train.tokens)
    assert len(found.splits["test"]) == 0 and list(place.cache.iterdir()) == [], "what it lay in has no name"


def test_a_cache_that_cannot_be_written_is_said(place: DataPlace) -> None:
    (place.root / "pg19" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="ATTNBENCH_CACHE"):
        read_folders(place.root / "pg19", "pg19 tree", {}, place.cache / "missing")


@pytest.mark.parametrize("text", [b"ten bytes.", b"thirty bytes, one to validate."])
def test_a_text_too_short_to_predict_is_said(text: bytes, place: DataPlace) -> None:
    (place.root / "gutenberg").mkdir()
    (place.root / "gutenberg" / "a.txt").write_bytes(text)
    with pytest.raises(DataError, match="at least two tokens in validation"):
        loaded(GutenbergCharacters(), place)


def test_another_text_is_not_taken_for_tinyshakespeare(place: DataPlace) -> None:
    (place.root / "tinyshakespeare.txt").write_bytes(TEXT)
    with pytest.raises(DataError, match=REMOTE.sha256):
        loaded(TinyShakespeare(), place)


def test_ngrams_spend_the_bits_of_a_count_by_hand(place: DataPlace, books: list[bytes]) -> None:
    data = loaded(GutenbergCharacters(), place)
    train = text_of(data.train)
    ones, twos = Counter(train), Counter(pairwise(train))
    before = Counter(train[:-1])
    share = {byte: (ones[byte] + 1) / (len(train) + 256) for byte in range(256)}
    bits = np.zeros(2)
    letters = 0
    for book in books:
        end = book[len(book) * 19 // 20 :]
        letters += sum(byte & 0xC0 != 0x80 for byte in end[1:])
        for a, b in pairwise(end):
            bits -= [math.log2(share[b]), math.log2((twos[a, b] + share[b]) / (before[a] + 1))]
    for found, expected in zip((unigram(data, RECIPE), bigram(data, RECIPE)), bits, strict=True):
        assert found.shape == (len(data.test), 2)
        assert found[:, 0].sum() == pytest.approx(expected) and found[:, 1].sum() == letters
