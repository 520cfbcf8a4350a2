from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.models.encoder import Encoder
from attnbench.tasks.contract import DataPlace, Recipe
from attnbench.tasks.lra._text.pairs import FILES, literal_bytes, read_pairs
from attnbench.tasks.lra.retrieval import Retrieval

ALL = Recipe(length=4000, validation_examples=None)
FIRST = "tab\there, newline\n, quote ', \u0085 \u2028 é".encode()
SECOND = b"both ' and \""


def write(folder: Path, rows: list[tuple[str, bytes, bytes]]) -> None:
    folder.mkdir(parents=True)
    for name in FILES.values():
        lines = [f"{label}\tP00-1\tP01-2\t{first!r}\t{second!r}\n" for label, first, second in rows]
        (folder / name).write_text("".join(lines), encoding="utf-8", newline="")


@given(st.binary(max_size=200))
def test_a_literal_reads_back_as_the_bytes_it_was_written_from(content: bytes) -> None:
    assert literal_bytes(repr(content).encode()) == content


@pytest.mark.parametrize(
    "text",
    [
        b"plain text",
        b"'a string'",
        b"b'a' + b'b'",
        b"b'open'",
        b"b'%s' % __import__('os').system('true') or b''",
        b"b'\xc3\xa9'",
        b"b'unfinished\\'",
        b"b" + b"(" * 5_000 + b"'",
    ],
)
def test_nothing_but_one_bytes_literal_is_read(text: bytes) -> None:
    if text == b"b'open'":
        assert literal_bytes(text) == b"open", "a name inside quotes is text"
        return
    with pytest.raises(ValueError, match="bytes literal"):
        literal_bytes(text)


@pytest.mark.parametrize("folder", ["lra_release/tsv_data", "lra_release/lra_release/tsv_data", "tsv_data"])
def test_pairs_of_the_official_layout_arrive_whole(place: DataPlace, folder: str) -> None:
    write(
        place.root / folder,
        [("1.0", FIRST, SECOND), ("0.0", SECOND, b"x" * 9_000), ("1", b"a", b"b"), ("0", b"c", b"d")],
    )
    dataset = Retrieval().load(place, ALL, 0, "validation")
    assert dataset.test.labels.tolist() == [1, 0, 1, 0] and dataset.test.split.towers == 2
    documents = [bytes((ids - 1).astype(np.uint8)) for ids in dataset.test.sequences()]
    assert documents == [FIRST, SECOND, SECOND, b"x" * 4_000, b"a", b"b", b"c", b"d"]
    ids, lengths, _ = dataset.test.batch(np.array([1]), 10)
    assert ids.shape == (1, 2, 10) and lengths.tolist() == [[10, 10]]
    assert (ids[0, 1] == ord("x") + 1).all()


def test_other_pairs_are_a_surrogate_and_say_so(place: DataPlace) -> None:
    write(place.root / "tsv_data", [("1.0", b"a", b"b"), ("0.0", b"c", b"d")])
    data = Retrieval().load(place, ALL, 0, "validation").provenance
    assert data.fidelity == "surrogate" and "2/2/2 pairs instead of 147,086/18,090/17,437" in data.notes[0]


def test_the_eval_file_is_validation(place: DataPlace) -> None:
    write(place.root / "tsv_data", [("1.0", b"a", b"b"), ("0.0", b"c", b"d")])
    (place.root / "tsv_data" / FILES["validation"]).write_text("1.0\tx\ty\tb'v'\tb'w'\n")
    dataset = Retrieval().load(place, ALL, 0, "validation")
    assert [bytes((ids - 1).astype(np.uint8)) for ids in dataset.validation.sequences()] == [b"v", b"w"]
    assert len(dataset.train) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1.0\tx\ty\tb'v'\n", "line 1: expected a label"),
        ("2.0\tx\ty\tb'v'\tb'w'\n", "line 1: expected a label"),
        ("1.0\tx\ty\tb'v'\tplain\n", "line 1: expected a bytes literal"),
        ("1.0\tx\ty\tb'v'\tb'w'\n\n", "line 2: expected a label"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "x.tsv").write_text(line)
    with pytest.raises(DataError, match=complaint):
        read_pairs(tmp_path / "x.tsv")


def test_without_files_the_error_says_where_they_belong(place: DataPlace) -> None:
    with pytest.raises(DataError, match=r"lra_release/tsv_data lacks new_aan_pairs\.train\.tsv"):
        Retrieval().load(place, ALL, 0, "validation")
    files, export = Retrieval().availability(place)
    assert not files.ready and not export.ready
    assert "lra_release.gz" in files.advice and "github.com/google-research/long-range-arena" in files.advice
    with pytest.raises(DataError, match=r"pairs of your own there in its format"):
        Retrieval().load(place, ALL, 0, "validation")


def test_both_heads_see_the_same_two_states() -> None:
    recipe = Recipe(length=12, width=8, heads=2, feed_forward=16, dropout=0.0, attention_dropout=0.0)
    ids = torch.randint(1, 257, (3, 2, 12), generator=torch.Generator().manual_seed(0))
    seen = {}
    for head in ("nli4", "concat2"):
        model = Encoder(Retrieval(head=head).problem(), recipe, partial(VARIANTS.build, Spec("softmax")), seed=0).eval()
        model.head.register_forward_pre_hook(lambda module, inputs, head=head: seen.__setitem__(head, inputs[0]))
        assert model(ids, torch.full((3, 2), 12)).shape == (3, 2)
    first, second = seen["concat2"].split(8, dim=-1)
    assert torch.equal(seen["nli4"], torch.cat([first, second, first * second, first - second], dim=-1))


def test_word_overlap_finds_pairs_that_share_rare_words(place: DataPlace) -> None:
    rows = []
    for i in range(40):
        common = "the of and a to in"
        rows.append(("1.0", f"{common} topic{i} method{i}".encode(), f"{common} topic{i} result".encode()))
        rows.append(("0.0", f"{common} thing{i} method{i}".encode(), f"{common} other{i} result".encode()))
    write(place.root / "tsv_data", rows)
    dataset = Retrieval().load(place, ALL, 0, "validation")
    score = {n: float((p(dataset, ALL) == dataset.test.labels).mean()) for n, p in Retrieval.baselines.items()}
    assert score["majority"] == 0.5 and score["word-overlap"] == 1.0
    short = Retrieval.baselines["word-overlap"](dataset, Recipe(length=18))
    assert len(set(short.tolist())) == 1, "the common words alone tell nothing"
