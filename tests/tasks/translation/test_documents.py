"""Documents of a slice: whatever is drawn, held out or too long, what is joined stood together in its file."""

import re
from itertools import pairwise

import numpy as np
import pytest

from attnbench.tasks.contract import DataPlace, Split
from attnbench.tasks.data.prepared import PreparedData
from attnbench.tasks.splits import bytes_of
from attnbench.tasks.translation.build import CorpusSlice, RawCorpus, arrange, carve_validation, sample_pairs
from attnbench.tasks.translation.corpora import EN_DE_2014
from attnbench.tasks.translation.documents import spans
from attnbench.tasks.translation.parallel import ParallelSet, without
from attnbench.tasks.translation.problem import SentencePairs
from attnbench.tasks.translation.subwords import Subwords

pytest.importorskip("sentencepiece", reason="the extra `translation` is not installed")


def numbered(name: str, count: int, start: int = 0) -> ParallelSet:
    """Sentences that begin with their numbers and are of many lengths."""
    fill = np.random.default_rng(start).integers(1, 20, count)
    rows = [f"<{number}>" + " so" * int(words) for number, words in zip(range(start, start + count), fill, strict=True)]
    return ParallelSet(name=name, source=tuple(rows), target=tuple(row.replace("so", "ja") for row in rows))


def prepared(place: DataPlace, **changes) -> PreparedData:
    training = [numbered("first", 200), numbered("second", 150, 1_000)]
    known = [f"<{number}> known" for number in range(50)]
    tests = ParallelSet(
        name="t", source=(*training[0].source[20:200:17], *known), target=(*training[0].target[20:200:17], *known)
    )
    raw = RawCorpus(source="", files={}, training=training, validation=None, tests=[tests], official_training=False)
    return arrange(raw, EN_DE_2014, CorpusSlice(vocabulary=60, **changes), place)


def numbers(made: PreparedData, split: str) -> list[list[int]]:
    """The sentences of each document, by number."""
    subwords = Subwords(bytes_of(made.splits["subwords"].tokens))
    its = made.splits[split]
    return [[int(n) for n in re.findall(r"<(\d+)>", subwords.decode(its.sequence(at, 0)))] for at in range(len(its))]


def in_a_row(document: list[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(document))


def test_neighbours_in_a_document_were_neighbours_in_the_file(place):
    made = prepared(place, document=5, pairs=120, max_length=16)
    documents = numbers(made, "train")
    whole = numbers(prepared(place, document=5, pairs=120, max_length=None), "train")
    assert all(map(in_a_row, [*documents, *whole, *numbers(made, "validation")]))
    assert max(map(len, documents)) == max(map(len, whole)) == 5
    assert 0 < made.provenance.counts["train"] == sum(map(len, documents)) < sum(map(len, whole))
    # a tenth validates
    assert 120 <= sum(map(len, whole)) + sum(map(len, numbers(made, "validation"))) < 125
    assert any(
        re.fullmatch(r"train: seeded slice of 12\d of 339 pairs, in runs of 5", n) for n in made.provenance.notes
    )
    assert any(len(document) > 1 for document in numbers(made, "validation"))


def test_a_smaller_slice_of_documents_is_a_part_of_a_larger_one():
    (first, second), _ = without([numbered("a", 90), numbered("b", 61, 500)], [numbered("a", 3, 40)])
    slices = [sample_pairs([first, second], count, 4) for count in (10, 30, 90)]
    for few, more in pairwise(slices):
        assert all(set(a.source) <= set(b.source) for a, b in zip(few, more, strict=True))
    for count, made in zip((10, 30, 90), slices, strict=True):
        assert count <= sum(map(len, made)) < count + 4


def test_a_batch_of_pairs_is_its_rows_cut_and_padded_to_its_longest():
    random = np.random.default_rng(0)
    starts = np.append(0, random.integers(0, 13, 24).cumsum()).astype(np.int64)
    tokens = random.integers(1, 2**16, starts[-1]).astype(np.uint16)
    split = Split(tokens=tokens, starts=starts, labels=np.zeros(12, dtype=np.int64), towers=2)
    pairs, at = SentencePairs(split=split, indices=np.arange(12)[::-1].copy()), np.array([3, 0, 11, 3])
    source, lengths, target = pairs.batch(at, 9)
    sides = [[split.sequence(int(11 - row), side)[:9] for row in at] for side in (0, 1)]
    assert lengths[:, 0].tolist() == [len(row) for row in sides[0]]
    for table, rows in ((source[:, 0], sides[0]), (target, sides[1])):
        assert table.shape[1] == max(map(len, rows))
        for found, row in zip(table, rows, strict=True):
            assert found.tolist() == [*row.tolist(), *[0] * (table.shape[1] - len(row))]


def test_a_document_ends_where_a_sentence_was_left_out():
    kept = numbered("a", 10).only([0, 1, 2, 4, 5, 6, 9])
    assert kept.gaps == {3, 6}
    assert kept.only([0, 2, 3, 4, 6]).gaps == {1, 2, 4}, "older gaps stay, wherever they come to lie"
    sides = [[np.ones(2, dtype=np.uint16)] * 7] * 2
    assert spans(*sides, 4, gaps=kept.gaps) == [range(0, 3), range(3, 6), range(6, 7)]


def test_what_is_carved_for_validation_keeps_its_runs_apart():
    training, validation = carve_validation([numbered("a", 200), numbered("b", 100, 1_000)], 6)
    assert len(validation) == 30
    where = [int(re.findall(r"\d+", line)[0]) for line in validation.source]
    breaks = {at for at in range(1, 30) if where[at] != where[at - 1] + 1}
    assert breaks <= validation.gaps and len(breaks) < 8
    for each in training:
        its = [int(re.findall(r"\d+", line)[0]) for line in each.source]
        assert {at for at in range(1, len(its)) if its[at] != its[at - 1] + 1} == each.gaps
