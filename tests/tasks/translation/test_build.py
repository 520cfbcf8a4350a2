"""Parallel text: read, cut, split into subwords, joined into documents; nothing that is tested on is trained on."""

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.record import Provenance
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data.download import RemoteFile
from attnbench.tasks.data.prepared import PreparedData
from attnbench.tasks.splits import bytes_of
from attnbench.tasks.translation import sources as module
from attnbench.tasks.translation.build import (
    TEST_DIGESTS,
    CorpusSlice,
    RawCorpus,
    arrange,
    carve_validation,
    sample_pairs,
    texts,
)
from attnbench.tasks.translation.corpora import (
    EN_DE_2014,
    EN_FI_2018,
    EN_FR_2014,
    MULTI30K_EN_DE,
    RO_EN_2016,
    ZH_EN_2018,
    Corpus,
)
from attnbench.tasks.translation.documents import joined, joined_text, spans
from attnbench.tasks.translation.parallel import ParallelSet, find_sets, read_lines, without
from attnbench.tasks.translation.problem import TranslationRecipe
from attnbench.tasks.translation.sources import sources
from attnbench.tasks.translation.subwords import END, Subwords, learn, learned
from attnbench.tasks.translation.tasks import EnglishGerman, Parallel, copy_source

sentencepiece = pytest.importorskip("sentencepiece")

WORDS = ["house", "dog", "tree", "sees", "the", "a", "small", "runs", "green", "old"]
HAUS = dict(zip(WORDS, ["Haus", "Hund", "Baum", "sieht", "das", "ein", "klein", "läuft", "grün", "alt"], strict=True))


def sentences(count, seed):
    random = np.random.default_rng(seed)
    rows = [[WORDS[at] for at in random.integers(0, 10, random.integers(2, 9))] for _ in range(count)]
    return ParallelSet(
        name=f"set-{seed}",
        source=tuple(" ".join(row) for row in rows),
        target=tuple(" ".join(HAUS[word] for word in row) for row in rows),
    )


def write(folder: Path, stem: str, languages: tuple[str, str], each: ParallelSet) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for language, side in zip(languages, (each.source, each.target), strict=True):
        (folder / f"{stem}.{language}").write_text("".join(line + "\n" for line in side), encoding="utf-8", newline="")


def small(place: DataPlace, **changes) -> PreparedData:
    raw = RawCorpus(
        source="made up",
        files={},
        training=[sentences(60, 1), sentences(40, 2)],
        validation=sentences(10, 3),
        tests=[sentences(12, 4), sentences(5, 5)],
        official_training=False,
    )
    return arrange(raw, EN_DE_2014, CorpusSlice(vocabulary=120, **changes), place)


def test_only_a_newline_ends_a_line(tmp_path):
    (tmp_path / "text").write_bytes("one\u0085still one\r\ntwo\u2028still two\n\nfour".encode())
    assert read_lines(tmp_path / "text") == ["one\u0085still one", "two\u2028still two", "", "four"]


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "text").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"UTF-8 text in .*text, got byte 0xff"):
        read_lines(tmp_path / "text")


def test_a_set_is_found_under_either_order_of_its_languages_and_read_source_first(tmp_path):
    write(tmp_path / "wmt" / "newstest", "newstest2014.de-en", ("de", "en"), sentences(3, 1))
    (pair,) = find_sets(tmp_path, "newstest2014", ("en", "de"))
    assert pair.read().source == sentences(3, 1).target
    assert find_sets(tmp_path, "newstest2014", ("en", "fr")) == []


def test_two_files_of_different_lengths_are_refused(tmp_path):
    write(tmp_path, "x.en-de", ("en", "de"), ParallelSet(name="", source=("a", "b"), target=("a",)))
    with pytest.raises(DataError, match=r"as many lines.*got 2 and 1"):
        find_sets(tmp_path, "x", ("en", "de"))[0].read()


def test_no_training_pair_shares_a_side_with_what_is_held_out():
    training = ParallelSet(name="t", source=("a", "b", "c", " ", "e"), target=("A", "B", "C", "D", "E"))
    held_out = ParallelSet(name="h", source=("b", "x"), target=("X", "E"))
    (kept,), dropped = without([training], [held_out])
    assert (kept.source, kept.target, dropped) == (("a", "c"), ("A", "C"), 3)


def test_a_smaller_slice_is_a_part_of_a_larger_one():
    sets = [sentences(50, 1), sentences(30, 2)]
    few, more = sample_pairs(sets, 10), sample_pairs(sets, 40)
    assert (sum(map(len, few)), sum(map(len, more))) == (10, 40)
    assert all(set(a.source) <= set(b.source) for a, b in zip(few, more, strict=True))
    assert sample_pairs(sets, 1_000) == sets


def test_carved_validation_shares_no_sentence_with_what_still_trains():
    training, validation = carve_validation([sentences(300, 1)])
    assert 0 < len(validation) <= 30
    assert not set(training[0].source) & set(validation.source)
    assert not set(training[0].target) & set(validation.target)


def test_a_vocabulary_is_the_same_bytes_for_the_same_lines_and_is_kept_by_them(place):
    lines = list(sentences(100, 1).source)
    assert learn(lines, 80) == learn(lines, 80)
    first = learned(place, lines, 80, ("en", "de"))
    (kept,) = (place.cache / "subwords").glob("*.model")
    kept.write_bytes(learn(lines[:50], 60))
    assert len(learned(place, lines, 80, ("en", "de"))) != len(first), "what is kept is used again"
    assert learned(place, lines[:-1], 80, ("en", "de")).model == learn(lines[:-1], 80), "other lines, another one"


def test_the_vocabulary_knows_nothing_of_held_out_text(place):
    raw = RawCorpus(
        source="made up",
        files={},
        training=[sentences(60, 1)],
        validation=ParallelSet(name="v", source=("zzz qqq",), target=("zzz",)),
        tests=[ParallelSet(name="t", source=("xxx yyy",), target=("xxx",))],
        official_training=False,
    )
    prepared = arrange(raw, EN_DE_2014, CorpusSlice(vocabulary=120), place)
    subwords = Subwords(bytes_of(prepared.splits["subwords"].tokens))
    assert subwords.decode(subwords.encode(["zzz"])[0]).strip() == "⁇"
    assert texts(prepared.splits["test.text"], 0) == ["xxx yyy"]


@given(st.lists(st.sampled_from([*WORDS, *HAUS.values()]), min_size=1, max_size=12))
def test_text_comes_back_from_its_ids_and_words_keep_their_subwords(words):
    subwords = Subwords(MODEL)
    (ids,) = subwords.encode([" ".join(words)])
    assert subwords.decode(ids) == " ".join(words)
    alone, places = subwords.encode_words(words)
    assert alone.tolist() == ids.tolist() and places[-1] == -1
    for place, word in enumerate(words):
        assert subwords.decode(alone[[each == place for each in places]]) == word


MODEL = learn([*sentences(100, 1).source, *sentences(100, 1).target], 90)


def test_ids_past_the_last_subword_are_no_text():
    subwords = Subwords(MODEL)
    (ids,) = subwords.encode(["the dog runs"])
    beyond = [len(subwords), *ids[:-1].tolist(), 2**16 - 1, END]
    assert subwords.decode(beyond) == "the dog runs"
    assert subwords.pieces(beyond) == ["?", *subwords.pieces(ids[:-1]), "?", subwords.pieces([END])[0]]


def test_what_is_prepared_is_the_text_and_its_ids(place):
    prepared = small(place)
    subwords = Subwords(bytes_of(prepared.splits["subwords"].tokens))
    test, written = prepared.splits["test"], prepared.splits["test.text"]
    assert test.labels.tolist() == [0] * 12 + [1] * 5
    assert texts(written, 0) == [*sentences(12, 4).source, *sentences(5, 5).source]
    for at in range(len(test)):
        for tower in (0, 1):
            assert test.sequence(at, tower)[-1] == END
            assert subwords.decode(test.sequence(at, tower)) == texts(written, tower)[at]
    assert prepared.provenance.fidelity == "surrogate"
    assert prepared.provenance.counts["set-4"] == 12
    assert any("instead of the 4,508,785 official ones" in note for note in prepared.provenance.notes)


def test_pairs_and_lengths_cut_training_and_never_the_test(place):
    whole, cut = small(place), small(place, pairs=30, max_length=6)
    assert len(cut.splits["train"]) <= 30
    assert np.diff(cut.splits["train"].starts).max() <= 6
    assert len(cut.splits["test"]) == len(whole.splits["test"]) == 17
    assert max(np.diff(cut.splits["test"].starts)) > 6
    assert any("seeded slice of 30" in note for note in cut.provenance.notes)


def test_documents_are_whole_sentences_in_a_row_within_the_limit():
    random = np.random.default_rng(0)
    sides = [[np.full(int(n), 7, dtype=np.uint16) for n in random.integers(1, 30, 50)] for _ in range(2)]
    for size, most in ((1, 8_192), (7, 8_192), (50, 60)):
        documents = spans(*sides, size, most)
        assert [at for document in documents for at in document] == list(range(50))
        for document in documents:
            assert len(document) <= size
            assert len(document) == 1 or max(sum(len(side[at]) for at in document) for side in sides) <= most


def test_a_document_is_its_sentences_with_one_end(place):
    subwords = Subwords(MODEL)
    lines = list(sentences(7, 6).source)
    documents = spans(subwords.encode(lines), subwords.encode(lines), 3)
    ids, text = joined(subwords.encode(lines), documents), joined_text(lines, documents)
    assert len(ids) == 3 and text[0] == " ".join(lines[:3])
    for each, line in zip(ids, text, strict=True):
        assert subwords.decode(each) == line and np.count_nonzero(each == END) == 1
    prepared = small(place, document=4)
    assert len(prepared.splits["test"]) == 3 + 2, "no document spans two sets"


def test_plain_files_become_a_task_and_are_used_again_from_the_cache(place):
    news = place.root / "wmt" / "newstest"
    for name, count, seed in (("news-test2008", 200, 1), ("newstest2013", 20, 3), ("newstest2014", 30, 4)):
        write(news, f"{name}.de-en", ("en", "de"), sentences(count, seed))
    write(place.root / "multi30k", "test_2016_flickr", ("en", "de"), sentences(8, 9))
    task = EnglishGerman(max_length=40)
    recipe = replace(task.recipe(Spec("smoke")), vocabulary=100, test_examples=None)
    dataset = task.load(place, recipe, 0, "validation")
    assert task.availability(place)[0].ready
    assert (len(dataset.test), len(dataset.validation)) == (38, 20)
    assert dataset.test.sets == ("newstest2014", "multi30k/test_2016_flickr")
    assert dataset.test.references[:30] == sentences(30, 4).target
    assert dataset.test.labels.tolist() == [0] * 30 + [1] * 8
    # pairs that stand in a held-out set do not train
    assert not set(dataset.test.sources) & set(texts_of(dataset.train, dataset.test.decode))
    assert copy_source(dataset, recipe).tolist() == list(dataset.test.sources)
    again = task.load(place, recipe, 1, "validation")
    assert again.train.split.tokens.tobytes() == dataset.train.split.tokens.tobytes()
    chosen_on_test = task.load(place, recipe, 0, "test")
    assert len(chosen_on_test.validation) == 38 and any(
        "on the test split" in n for n in chosen_on_test.provenance.notes
    )


def english_german(place: DataPlace, **training: int) -> Callable[..., Provenance]:
    """Where pairs come from with plain files of so many training pairs a set, by `sets`."""
    news = place.root / "wmt" / "newstest"
    for name, count, seed in (("newstest2013", 20, 3), ("newstest2014", 30, 4)):
        write(news, f"{name}.de-en", ("en", "de"), sentences(count, seed))
    for seed, (name, count) in enumerate(training.items(), start=10):
        write(place.root / "wmt" / "train", f"{name}.de-en", ("en", "de"), sentences(count, seed))
    corpus = replace(EN_DE_2014, official=("europarl", "crawl"), official_pairs=200, substitutes=("tatoeba",))

    def provenance(sets: str = "") -> Provenance:
        return sources("wmt14-en-de", corpus, CorpusSlice(vocabulary=100, sets=sets))[0].prepared(place).provenance

    return provenance


def test_training_sets_that_are_not_whole_are_not_the_official_ones(place, monkeypatch):
    monkeypatch.setitem(TEST_DIGESTS, sentences(30, 4).digest(), "made up")
    assert english_german(place, europarl=100, crawl=80)().fidelity == "official"
    found = english_german(place, europarl=100, crawl=79)()
    assert found.fidelity == "surrogate"
    assert any("not whole: 179 pairs are here, fewer than 90% of 200" in note for note in found.notes)
    assert any("instead of the 200 official ones" in note for note in found.notes)


def test_named_training_sets_are_taken_of_the_official_ones_and_of_the_others_and_are_never_official(
    place, monkeypatch
):
    monkeypatch.setitem(TEST_DIGESTS, sentences(30, 4).digest(), "made up")
    provenance = english_german(place, europarl=195, crawl=30, tatoeba=80)
    assert provenance().fidelity == "official"
    for sets, name in (("europarl", "europarl.de-en.en"), ("tatoeba", "tatoeba.de-en.en")):
        found = provenance(sets)
        assert found.fidelity == "surrogate"
        assert [file for file in found.files if file.endswith(".en") and "newstest" not in file] == [name]


def test_gold_alignments_are_among_the_files_that_a_result_rests_on(place):
    write(place.root / "mine", "books", ("de", "en"), sentences(150, 1))
    write(place.root / "mine", "test", ("de", "en"), sentences(9, 2))
    task = Parallel(path="mine", source="de", target="en")
    recipe = replace(task.recipe(Spec("smoke")), vocabulary=100)
    without_gold = task.load(place, recipe, 0, "validation").provenance.files
    # of the other direction, which serves as well
    gold = place.root / "alignments" / "en-de"
    gold.mkdir(parents=True)
    for name, text in (("text.src", "the dog\n"), ("text.tgt", "das Hund\n"), ("gold.talp", "0-0 1-1\n")):
        (gold / name).write_text(text, encoding="utf-8")
    dataset = task.load(place, recipe, 0, "validation")
    assert len(dataset.test.aligned) == 1
    added = {name: its for name, its in dataset.provenance.files.items() if name not in without_gold}
    assert added == {
        f"alignments/en-de/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in gold.iterdir()
    }


def texts_of(pairs, decode):
    return [decode(ids) for ids in list(pairs.sequences())[::2]]


def test_test_sets_that_sacrebleu_downloaded_are_a_source(place, monkeypatch, tmp_path):
    utils = pytest.importorskip("sacrebleu.utils")
    sets = {"wmt08": 200, "wmt13": 20, "wmt14/full": 30}
    for seed, (its, count) in enumerate(sets.items()):
        write(tmp_path / its, "text", ("en", "de"), sentences(count, seed))
    monkeypatch.setattr(utils, "get_source_file", lambda its, _: str(tmp_path / its / "text.en"))
    monkeypatch.setattr(utils, "get_reference_files", lambda its, _: [str(tmp_path / its / "text.de")])
    corpus = replace(
        EN_DE_2014, sacrebleu={"news-test2008": "wmt08", "newstest2013": "wmt13", "newstest2014": "wmt14/full"}
    )
    source = sources("wmt14-en-de", corpus, CorpusSlice(vocabulary=100))[2]
    prepared = source.prepared(replace(place, offline=False))
    assert prepared.provenance.source == "sacreBLEU's test sets"
    assert texts(prepared.splits["test.text"], 1) == list(sentences(30, 2).target)
    assert len(prepared.splits["validation"]) == 20
    unfit = sources("wmt14-en-de", corpus, CorpusSlice(vocabulary=100, sets="multi30k"))[2]
    assert unfit.prepared(replace(place, offline=False)) is None
    assert "is one of sets=multi30k" in unfit.availability(place).detail


def test_mistaken_parameters_are_named():
    with pytest.raises(SelectionError, match="where to join some of encoder, decoder, cross"):
        EnglishGerman(where="everywhere")
    for sets in ("multi3k", "tatoeba+", "newstest2014"):
        with pytest.raises(SelectionError, match=r"expected sets to join parts of europarl-v7, .*multi30k/train by"):
            EnglishGerman(sets=sets)
    assert EnglishGerman(sets="europarl+multi30k").sets == "europarl+multi30k"
    assert EnglishGerman(where="cross").problem().where == ("cross",)
    assert EnglishGerman(document=4).recipe(Spec("quick")).length == 4 * TranslationRecipe().length


@pytest.mark.data
@pytest.mark.parametrize("corpus", [EN_DE_2014, EN_FR_2014, RO_EN_2016, ZH_EN_2018, EN_FI_2018])
def test_the_real_test_sets_are_the_official_ones(corpus, real_data):
    pairs = find_sets(real_data, corpus.tests[0], corpus.languages)
    if not pairs:
        pytest.skip(f"{corpus.tests[0]} is not under {real_data}")
    assert pairs[0].read().digest() in TEST_DIGESTS


def gz_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """The corpus of Multi30k with small files; `fetch` finds these in `folder`."""
    downloads = {}
    for seed, name in enumerate(MULTI30K_EN_DE.downloads):
        each = sentences(40 if name.endswith("train") else 6, seed)
        remotes = []
        for language, side in zip(("en", "de"), (each.source, each.target), strict=True):
            content = gzip.compress("".join(line + "\n" for line in side).encode())
            file = f"{Path(name).name}.{language}.gz"
            (folder / file).write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            remotes.append(RemoteFile(name=file, urls=("http://x.test",), sha256=sha256, bytes=len(content)))
        downloads[name] = tuple(remotes)
    monkeypatch.setattr(module, "fetch", lambda remote, place: folder / remote.name)
    return replace(MULTI30K_EN_DE, downloads=downloads, official_pairs=40)


def test_packed_downloads_give_the_pairs_of_the_plain_files(place, tmp_path, monkeypatch):
    corpus = gz_served(tmp_path, monkeypatch)
    (plain, downloaded) = sources("multi30k-en-de", corpus, CorpusSlice(vocabulary=100))
    assert plain.prepared(place) is None and downloaded.prepared(replace(place, offline=True)) is None
    found = downloaded.prepared(replace(place, offline=False))
    assert found.provenance.source == "download of the authors' files"
    # the small sets are not those whose digest is known
    assert found.provenance.fidelity == "surrogate"
    for at, name in enumerate(corpus.tests):
        pairs = sentences(6, list(corpus.downloads).index(name))
        rows = [texts(found.splits["test.text"], tower)[6 * at : 6 * at + 6] for tower in (0, 1)]
        assert rows == [list(pairs.source), list(pairs.target)]
    unfit = sources("multi30k-en-de", corpus, CorpusSlice(vocabulary=100, sets="val"))[1]
    assert "no training set is in sets=val" in unfit.availability(place).detail
