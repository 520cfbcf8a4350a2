"""A file of pairs: a tenth tests, another validates, no sentence is in two parts; clear answers to bad files."""

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec

pytest.importorskip("sentencepiece")

PAIRS = [(f"house {number} is old", f"maison {number} est vieille") for number in range(400)]


@pytest.fixture
def load(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)

    def loaded(content, **more):
        (tmp_path / "my.tsv").write_bytes(content)
        task = TASKS.build(Spec.of("parallel", file="my.tsv", **more))
        return task.load(place, task.recipe(Spec.parse("smoke[test_examples=40]")), 0, "validation")

    return loaded


def lines(pairs):
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def test_a_tenth_tests_and_all_pairs_are_in_one_part(load):
    found = load(lines(PAIRS))
    tested = list(zip(found.test.sources, found.test.references, strict=True))
    assert len(tested) == 40 and set(tested) < set(PAIRS)
    assert found.provenance.counts["train"] == 324
    assert (found.provenance.source, found.provenance.fidelity) == ("my.tsv", "own")
    # a comment behind a second tab, as Tatoeba has it, moves nothing but the checksum
    other = load(lines((source, f"{target}\tCC-BY") for source, target in PAIRS))
    assert other.test.references == found.test.references
    assert other.provenance.files.keys() == {"my.tsv"} and other.provenance.files != found.provenance.files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected at least 20 pairs in my.tsv, got 0"),
        (lines(PAIRS[:19]), "expected at least 20 pairs in my.tsv, got 19"),
        (lines(PAIRS[:2]) + b"alone\n" + lines(PAIRS), "expected SOURCE<tab>TARGET in my.tsv, line 3; got no tab"),
        ("grüßt\tsalue\n".encode("latin-1") * 40, "expected UTF-8 text in .*my.tsv, got byte 0xfc"),
    ],
)
def test_a_bad_file_is_refused_with_one_line(load, content, said):
    with pytest.raises(DataError, match=said):
        load(content)
