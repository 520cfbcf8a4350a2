"""Subwords of language modelling: they spell any text, and count its characters and words as bytes do."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.tasks.contract import DataPlace, Dataset, Task
from attnbench.tasks.language_modeling import subwords
from attnbench.tasks.language_modeling.books import GutenbergCharacters
from attnbench.tasks.language_modeling.packing import texts
from attnbench.tasks.language_modeling.tinyshakespeare import TinyShakespeare
from attnbench.tasks.problems.language_modeling import LanguageRecipe, Windows
from attnbench.tasks.problems.vocabulary import BYTES, Vocabulary

pytest.importorskip("sentencepiece", reason="needs the extra `translation`")

SIZE = 512
LINES = [f"the cat number {at} sat on the mat; the rat of Zürich sat on the other cat." for at in range(60)]
RECIPE = LanguageRecipe(length=16, stride=8, validation_examples=None, test_examples=None)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return subwords.vocabulary_of(subwords.learn(LINES, SIZE), SIZE, "unicode")


@pytest.fixture
def book(place: DataPlace) -> bytes:
    (place.root / "gutenberg").mkdir()
    text = "\n".join(LINES).encode()
    (place.root / "gutenberg" / "a.txt").write_bytes(text)
    return text


def loaded(task: Task, place: DataPlace) -> Dataset:
    return task.load(place, RECIPE, 0, "validation")


@given(text=st.text(st.sampled_from("the cat\n\t  \r\u2581\u00fc\u4e2d\U0001f600\x00<0A>"), max_size=40))
def test_any_text_is_spelled_byte_for_byte(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text.encode())
    assert vocabulary.decode(ids.tolist()) == text.encode()
    assert ids.dtype == np.uint16 and (ids > 1).all(), "neither padding nor unknown"


@given(text=st.text(st.sampled_from("the cat\n \t\u00fc\u4e2d"), min_size=1, max_size=60))
def test_characters_and_words_are_as_many_as_of_bytes(vocabulary: Vocabulary, text: str) -> None:
    whole = f"\n{text}".encode()
    ids, plain = vocabulary.encode(whole).astype(np.int64), BYTES.encode(whole).astype(np.int64)
    assert vocabulary.characters[ids].sum() == BYTES.characters[plain].sum() == len(text) + 1
    found, expected = (s.words(i[:-1], i[1:]).sum() for s, i in ((vocabulary, ids), (BYTES, plain)))
    assert found == expected == len(text.split()) + text.count("\n")


def test_a_task_in_subwords_reads_the_same_text(place: DataPlace, book: bytes) -> None:
    task = GutenbergCharacters(subwords=SIZE)
    found, plain = loaded(task, place), loaded(GutenbergCharacters(), place)
    assert task.problem().vocabulary == SIZE and GutenbergCharacters().problem().vocabulary == 257
    for ours, theirs in zip((found.train, found.test), (plain.train, plain.test), strict=True):
        texts_of = [w.vocabulary.decode(w.split.tokens.tolist()) for w in (ours, theirs)]
        assert texts_of[0] == texts_of[1] and len(ours.split.tokens) < len(theirs.split.tokens) / 2
    count = sum(map(bool, found.test.vocabulary.pieces))
    assert any(f"{count} subwords (byte pairs) of the training text" in note for note in found.provenance.notes)


def test_a_vocabulary_is_learned_once_and_from_the_training_text_alone(
    place: DataPlace, book: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = subwords.learn

    def learn(sentences: list[str], size: int) -> bytes:
        seen.extend(sentences)
        return real(sentences, size)

    monkeypatch.setattr(subwords, "learn", learn)
    first = loaded(GutenbergCharacters(subwords=SIZE), place)
    assert "\n".join(seen).encode() == book[: len(book) * 18 // 20].rstrip(b"\n")
    seen.clear()
    again = loaded(GutenbergCharacters(subwords=SIZE), place)
    assert not seen and np.array_equal(first.test.split.tokens, again.test.split.tokens)


def test_of_a_long_text_whole_lines_spread_over_it_are_learned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "LEARNING_BYTES", 1_200)
    monkeypatch.setattr(subwords, "SAMPLE_BYTES", 300)
    found = list(subwords._sentences(texts(["\n".join(LINES).encode()])))
    assert set(found) <= set(LINES) and 8 <= len(found) <= 16
    places = [LINES.index(line) for line in found]
    assert places == sorted(places) and places[0] < 5 and places[-1] > 55


def test_a_text_that_is_cut_inside_a_character_is_spelled_all_the_same(place: DataPlace) -> None:
    (place.root / "gutenberg").mkdir()
    text = b"a" * 11 + ("\u4e2d\u6587 \u201cthe cat\u201d\n" * 80).encode()
    (place.root / "gutenberg" / "a.txt").write_bytes(text)
    data, cuts = loaded(GutenbergCharacters(subwords=SIZE), place), (len(text) * 18 // 20, len(text) * 19 // 20)
    assert any(text[cut] & 0xC0 == 0x80 for cut in cuts), "the case that is meant"
    parts = (text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :])
    for part, expected in zip((data.train, data.validation, data.test), parts, strict=True):
        assert isinstance(part, Windows) and part.vocabulary.decode(part.split.tokens.tolist()) == expected


def test_more_subwords_than_a_text_has_leave_ids_that_stand_for_nothing(place: DataPlace, book: bytes) -> None:
    data = loaded(GutenbergCharacters(subwords=4_000), place)
    pieces = data.test.vocabulary.pieces
    assert len(pieces) == 4_000 and pieces[-1] == b""


@pytest.mark.parametrize("subwords", [-1, 300, 70_000])
def test_a_vocabulary_that_cannot_be_is_refused(subwords: int) -> None:
    with pytest.raises(SelectionError, match="0 subwords, for bytes, or 512 to 65,535"):
        TinyShakespeare(subwords=subwords)


def test_without_the_library_the_error_says_what_to_install(
    place: DataPlace, book: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(DataError, match=r"attnbench\[translation\]"):
        loaded(GutenbergCharacters(subwords=SIZE), place)
