"""Originals that are folders, links to nowhere or binary: one clear error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Task
from attnbench.tasks.data.byte_pairs import cached_model
from attnbench.tasks.data.sources import verify_originals
from attnbench.tasks.lra._pathfinder.archive import gray_png, metadata
from attnbench.tasks.lra.listops import ListOps
from attnbench.tasks.lra.text import Text

KINDS: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "broken link": lambda path: path.symlink_to("nowhere"),
}


def load(task: Task, place: DataPlace) -> None:
    task.load(place, task.recipe(Spec("pt-2x64" if "pt-2x64" in task.presets() else "quick")), 0, "validation")


@pytest.mark.parametrize("kind", KINDS)
def test_a_review_of_another_kind_is_an_error_that_names_it(kind: str, tree: Path, place: DataPlace) -> None:
    KINDS[kind](tree / "train" / "pos" / "9_9.txt")
    with pytest.raises(DataError, match=r"9_9\.txt"):
        load(Text(), place)


def test_binary_expressions_are_an_error_of_one_line(place: DataPlace) -> None:
    folder = place.root / "listops-1000"
    folder.mkdir()
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (folder / name).write_bytes(b"Source\tTarget\n" + bytes(range(256)) * 4)
    with pytest.raises(DataError) as refused:
        load(ListOps(), place)
    assert "\n" not in str(refused.value) and "basic_train.tsv" in str(refused.value)


def test_an_image_that_does_not_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "image.png"
    image.new("L", (16, 16)).save(path)
    whole = path.read_bytes()
    for content, said in ((whole, "expected 32 × 32"), (whole[:40], "no image"), (b"", "no image")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"image\.png.*{said}"):
            gray_png(path, 32)


@pytest.mark.parametrize("kind", [*KINDS, "binary"])
def test_metadata_of_another_kind_are_an_error(kind: str, tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    path = tmp_path / "metadata" / "0.npy"
    KINDS.get(kind, lambda path: path.write_bytes(bytes(range(256))))(path)
    with pytest.raises(DataError, match=r"0\.npy"):
        list(metadata(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checksum_note_of_another_kind_is_passed_over(kind: str, place: DataPlace) -> None:
    (place.cache / "checksums").mkdir(parents=True)
    KINDS[kind](place.cache / "checksums" / "note.json")
    assert list(verify_originals(place)) == []


def test_a_damaged_vocabulary_is_learned_anew(place: DataPlace) -> None:
    library = pytest.importorskip("sentencepiece")
    assert library
    from attnbench.tasks.data.byte_pairs import learn_byte_pairs

    def learn() -> bytes:
        return learn_byte_pairs(["a b c d e f g", "h i j k l m n"] * 20, 40)

    whole = cached_model(place, "words", learn)
    path = place.cache / "subwords" / "words.model"
    path.write_bytes(b"\x0a\xff\xff" + whole[: len(whole) // 2])
    assert cached_model(replace(place), "words", learn) == whole == path.read_bytes()
