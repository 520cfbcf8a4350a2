"""Gold alignments as people wrote them."""

from pathlib import Path

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.translation.alignments import aligned_pairs, read_links, read_pairs


def write(folder: Path, source: str, target: str, gold: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("text.src", source), ("text.tgt", target), ("gold.talp", gold)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_sure_links_are_possible_too():
    gold = read_links("0-0 2-1 1p1")
    assert gold.sure == {(0, 0), (2, 1)}
    assert gold.possible == {(0, 0), (2, 1), (1, 1)}


def test_pairs_of_the_other_direction_are_swapped(place: DataPlace):
    write(place.root / "alignments" / "de-en", "das Haus\n", "the big house\n", "0-0 1-2 1p1\n")
    (forward,) = aligned_pairs(place, "de", "en")
    (backward,) = aligned_pairs(place, "en", "de")
    assert forward.target == backward.source == ("the", "big", "house")
    assert backward.gold.sure == {(0, 0), (2, 1)} and backward.gold.possible == {(0, 0), (2, 1), (1, 1)}
    assert aligned_pairs(place, "en", "fr") == []


def test_only_spaces_part_words(tmp_path):
    folder = write(tmp_path, "10\u00a0000 Euro  hier\n", "ten\u2028thousand euros here\n", "0-0 1-1 2-2\n")
    (pair,) = read_pairs(folder)
    assert pair.source == ("10\u00a0000", "Euro", "hier")
    assert pair.target == ("ten\u2028thousand", "euros", "here")


def test_links_that_fit_no_sentence_are_refused_with_their_line(tmp_path):
    with pytest.raises(DataError, match=r"line 2: a link 0-3 in a pair of 1 and 3 words"):
        read_pairs(write(tmp_path, "a\nb\n", "x\nx y z\n", "0-0\n0-3\n"))
    with pytest.raises(DataError, match=r"0-1 \(sure\)"):
        read_links("0:1")
    with pytest.raises(DataError, match="as many lines"):
        read_pairs(write(tmp_path, "a\n", "x\ny\n", "0-0\n"))
