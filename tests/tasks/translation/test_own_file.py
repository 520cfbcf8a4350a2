"""A file of pairs: a tenth tests, another validates, no sentence is in two parts; clear answers to bad files."""

import gzip

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.tasks.translation import own_file

pytest.importorskip("sentencepiece")

PAIRS = [(f"house {number} is old", f"maison {number} est vieille") for number in range(400)]


@pytest.fixture
def load(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)

    def loaded(content, file="my.tsv"):
        (tmp_path / file).write_bytes(content)
        task = TASKS.build(Spec.of("parallel", file=file))
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
        (b"", "my.tsv: it is empty; name a file with SOURCE<tab>TARGET on each line, from /"),
        (lines(PAIRS[:19]), "expected at least 20 pairs in my.tsv, got 19"),
        (
            "".join(f"{source}\t \n" for source, _ in PAIRS).encode(),
            "got 0 of different sentences, and 400 lines have an empty half; write SOURCE<tab>TARGET on each line$",
        ),
        (
            "".join(f"en\t{source}\t{target}\n" for source, target in PAIRS).encode(),
            "got 1 of different sentences; .* it has 3 columns, and `cut -f 2,3 my.tsv` keeps two others",
        ),
        (
            "".join(f"{at}\t{s}\t{at + 7}\t{t}\n" for at, (s, t) in enumerate(PAIRS)).encode(),
            "expected sentences in the first column of my.tsv, got numbers alone; it has 4 columns, and `cut -f 2,4 ",
        ),
        (b"alone\n" + lines(PAIRS), "my.tsv: line 1 has no tab; name a file with SOURCE<tab>TARGET on each line"),
        (lines(PAIRS[:2]) + b"alone\n" + lines(PAIRS), "expected SOURCE<tab>TARGET in my.tsv, line 3; got no tab"),
        ("grüßt\tsalue\n".encode("latin-1") * 40, "expected UTF-8 text in .*my.tsv, got byte 0xfc"),
    ],
)
def test_a_bad_file_is_refused_with_one_line(load, content, said):
    with pytest.raises(DataError, match=said):
        load(content)


def test_a_packed_file_is_read_within_the_bound_of_what_it_holds(load, monkeypatch):
    packed = gzip.compress(lines(PAIRS))
    monkeypatch.setattr(own_file, "MOST_BYTES", len(lines(PAIRS)))
    assert load(packed, file="my.tsv.gz").provenance.counts["train"] == 324
    with pytest.raises(DataError, match=r"expected at most 15,780 bytes in my.tsv.gz, got more; take a part of it"):
        load(gzip.compress(lines(PAIRS) + b"one\tmore\n"), file="my.tsv.gz")
    with pytest.raises(DataError, match="the original of parallel does not read: error: Error -3"):
        load(packed[:40] + b"0" * 40 + packed[80:], file="my.tsv.gz")
