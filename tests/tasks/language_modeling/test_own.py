"""A text of one's own: its split, its digest, and clear answers to bad files."""

from dataclasses import replace

import pytest

from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.tasks.splits import bytes_of

TEXT = "".join(f"Zeile {number} grüßt.\n" for number in range(300))


@pytest.fixture
def load(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)

    def loaded(content, preset="smoke", **more):
        (tmp_path / "my.txt").write_bytes(content)
        task = TASKS.build(Spec.of("text", file="my.txt", **more))
        return task.load(place, task.recipe(Spec.parse(preset)), 0, "validation")

    return loaded


def test_the_parts_are_the_text_in_its_order_and_cut_no_character(load):
    found = load(TEXT.encode())
    parts = [bytes_of(part.split.tokens) for part in (found.train, found.validation, found.test)]
    assert b"".join(parts) == TEXT.encode()
    assert [len(part.decode()) for part in parts] == pytest.approx(
        [len(TEXT) * share for share in (0.9, 0.05, 0.05)], abs=1
    )
    assert (found.provenance.source, found.provenance.fidelity) == ("my.txt", "own")


def test_one_long_line_with_bytes_of_zero_is_text_and_told_before_it_is_prepared(tmp_path, place):
    content, told = b"abc \x00 def " * 200_000, []
    (tmp_path / "my.txt").write_bytes(content)
    task = TASKS.build(Spec.of("text", file=str(tmp_path / "my.txt")))
    found = task.load(replace(place, notice=told.append), task.recipe(Spec.parse("smoke")), 0, "validation")
    parts = [bytes_of(part.split.tokens) for part in (found.train, found.validation, found.test)]
    assert b"".join(parts) == content and [each.split(" in ")[0] for each in told] == ["preparing text"]


def test_other_content_is_another_checksum_and_the_same_name(load):
    first, second = load(TEXT.encode()).provenance, load(TEXT.replace("Z", "z").encode()).provenance
    assert first.files.keys() == second.files.keys() == {"my.txt"} and first.files != second.files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "my.txt: it is empty; name a file of text, from /"),
        (b"\n \n", "expected text in my.txt, got an empty file"),
        ("grüßt".encode("latin-1") * 400, "expected UTF-8 text in my.txt, got byte 0xfc at 2"),
        (b"abc " * 100, r"my.txt is too short: .* has 20 tokens, and the context is 64"),
    ],
)
def test_a_bad_file_is_refused_with_one_line(load, content, said):
    with pytest.raises(DataError, match=said):
        load(content)


def test_a_text_that_is_shorter_than_the_longer_windows_is_refused(load):
    found = load(TEXT.encode(), preset="smoke[longest=100,positions=rope]")
    assert set(found.test.longer.reads[found.test.longer.indices]) == {100} and found.validation.longer is None
    with pytest.raises(DataError, match="text of more than 9,000 tokens in test, for longest"):
        load(TEXT.encode(), preset="smoke[longest=9000,positions=rope]")


def test_subwords_of_a_text_are_learned(load):
    found = load(TEXT.encode() * 4, preset="smoke[length=16,stride=8]", subwords=512)
    assert found.test.vocabulary.characters.max() > 1


def test_without_a_file_the_answer_says_how(place):
    with pytest.raises(SelectionError, match="or --text my"):
        TASKS.build(Spec("text")).availability(place)
