import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Recipe
from attnbench.tasks.data.prepared import file_digest
from attnbench.tasks.lra._image import cifar
from attnbench.tasks.lra._image.cifar import FILES, gray, pixel_ids, read_batch
from attnbench.tasks.lra.image import Image

ALL = Recipe(length=1024, validation_examples=None)


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 with numpy 1 wrote it, opcode by opcode: strings are SHORT_BINSTRING, arrays old names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    shape = b"".join(b"M" + n.to_bytes(2, "little") for n in pixels.shape)
    content = pixels.tobytes()
    kind = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + shape + b"\x86" + kind + b"\x89T" + len(content).to_bytes(4, "little") + content + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def python3_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps(
        {b"data": pixels, b"labels": labels, b"batch_label": b"x", b"filenames": [b"a.png"]}, protocol=2
    )


def batch(seed: int, images: int = 20) -> tuple[np.ndarray, list[int]]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (images, 3072), dtype=np.uint8), [(seed + i) % 10 for i in range(images)]


@pytest.fixture
def batches(place: DataPlace) -> Path:
    root = place.root / "cifar-10-batches-py"
    root.mkdir()
    for seed, name in enumerate(FILES):
        (root / name).write_bytes(python3_pickle(*batch(seed)))
    return root


@pytest.mark.parametrize("write", [python2_pickle, python3_pickle])
def test_batches_of_both_pickle_dialects_are_read(write: object) -> None:
    assert callable(write)
    pixels, labels = batch(3)
    found_labels, found = read_batch(write(pixels, labels), "here")
    assert (found == pixels).all() and found_labels.tolist() == labels


class Runs:
    def __init__(self, function: object, *arguments: object):
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


@pytest.mark.parametrize(
    "bad",
    [
        lambda mark: Runs(os.system, f"touch {mark}"),
        lambda mark: {b"data": Runs(eval, f"open({str(mark)!r}, 'w')"), b"labels": [1]},
        lambda mark: {b"data": np.array([object()]), b"labels": [1]},
        lambda mark: {b"data": np.zeros((1, 3072), np.float32), b"labels": [1]},
        lambda mark: {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]},
        lambda mark: {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        lambda mark: {b"data": np.zeros((1, 1024), np.uint8), b"labels": [1]},
        lambda mark: {b"labels": [1]},
        lambda mark: [1, 2],
    ],
)
def test_a_pickle_that_asks_for_more_or_less_is_refused_and_runs_nothing(bad: object, tmp_path: Path) -> None:
    assert callable(bad)
    for protocol in (2, 5):
        content = pickle.dumps(bad(tmp_path / "mark"), protocol=protocol)
        with pytest.raises(DataError, match=r"data_batch_1 is no CIFAR-10 batch"):
            read_batch(content, "data_batch_1")
    assert not (tmp_path / "mark").exists()


def test_gray_is_the_weighted_sum_cut_off_after_scaling_back() -> None:
    """Oracle: the definition in float64, by hand; float32 may cut off on the other side of a whole number only."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 1024), dtype=np.uint8)
    exact = np.einsum("ncp,c->np", pixels.astype(np.float64), [0.2989, 0.5870, 0.1140]) / 255 * 255.5
    found = gray(pixels.reshape(50, 3072))
    off = found != np.floor(exact)
    assert np.abs(exact - np.round(exact))[off].max(initial=0) < 1e-4
    assert off.mean() < 1e-3


def test_black_is_a_pixel_and_not_padding(place: DataPlace, batches: Path) -> None:
    assert pixel_ids(np.array([0, 255], np.uint8)).tolist() == [1, 256]
    problem = Image().problem()
    assert (problem.vocabulary, problem.classes, problem.padded) == (257, 10, False)
    dataset = Image().load(place, ALL, 0, "validation")
    ids, lengths, _ = dataset.test.batch(np.arange(len(dataset.test)), 1024)
    assert ids.min() >= 1 and (lengths == 1024).all()


def test_pixels_arrive_in_raster_order_under_their_label(place: DataPlace, batches: Path) -> None:
    pixels, labels = batch(5)
    expected = {
        (label, (gray(row[None])[0].astype(np.uint16) + 1).tobytes()) for row, label in zip(pixels, labels, strict=True)
    }
    test = Image().load(place, ALL, 0, "validation").test
    assert {(int(n), ids.tobytes()) for n, ids in zip(test.labels, test.sequences(), strict=True)} == expected
    image = np.zeros((1, 3, 32, 32), np.uint8)
    image[0, :, 2, 5] = 255
    assert np.flatnonzero(gray(image.reshape(1, -1))[0]).tolist() == [2 * 32 + 5]


def test_tree_and_archive_yield_the_same_arrays_in_any_order(
    place: DataPlace, batches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_tree = Image().load(place, ALL, 0, "validation")
    assert from_tree.provenance.fidelity == "surrogate"
    assert "differs from the 60,000 official images (100 train, 20 test here)" in from_tree.provenance.notes
    path = place.root / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in reversed(FILES):
            tar.add(batches / name, f"cifar-10-batches-py/{name}")
        info = tarfile.TarInfo("cifar-10-batches-py/../data_batch_1")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    remote = replace(cifar.ARCHIVE, sha256=file_digest(path), bytes=path.stat().st_size)
    monkeypatch.setattr(cifar, "ARCHIVE", remote)
    batches.rename(batches.with_name("elsewhere"))
    from_archive = Image().load(place, ALL, 0, "validation")
    assert from_archive.provenance.source == "cifar-10-python.tar.gz"
    assert from_archive.provenance.fidelity == "official", "its published checksum was found right"
    for split in ("train", "test"):
        ours, theirs = (getattr(dataset, split).split for dataset in (from_tree, from_archive))
        assert ours.tokens.tobytes() == theirs.tokens.tobytes() and ours.labels.tolist() == theirs.labels.tolist()


def test_the_content_digest_does_not_see_the_order() -> None:
    pixels, labels = batch(1)
    one = {"train": (np.array(labels), pixels), "test": (np.array(labels[:3]), pixels[:3])}
    other = {"test": one["test"], "train": (np.array(labels)[::-1], pixels[::-1])}
    assert cifar.content_digest(one) == cifar.content_digest(other)
    changed = pixels.copy()
    changed[0, 0] ^= 1
    assert cifar.content_digest({**one, "train": (np.array(labels), changed)}) != cifar.content_digest(one)


def test_an_archive_that_lacks_a_batch_is_refused(place: DataPlace, batches: Path) -> None:
    contents = {name: (batches / name).read_bytes() for name in FILES[:-1]}
    with pytest.raises(DataError, match="lacks test_batch"):
        cifar._joined(contents, batches)


def test_mean_intensity_tells_bright_from_dark(place: DataPlace) -> None:
    root = place.root / "cifar-10-batches-py"
    root.mkdir()
    for name in FILES:
        labels = [i % 2 for i in range(40)]
        pixels = np.array([[40 + 150 * label + i % 7] * 3072 for i, label in enumerate(labels)], np.uint8)
        (root / name).write_bytes(python3_pickle(pixels, labels))
    dataset = Image().load(place, ALL, 0, "validation")
    score = {n: float((predict(dataset, ALL) == dataset.test.labels).mean()) for n, predict in Image.baselines.items()}
    assert score == {"majority": 0.5, "mean-intensity": 1.0}


@pytest.mark.data
def test_the_official_images_are_recognised(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "cifar-10-batches-py").is_dir():
        pytest.skip(f"real data: no cifar-10-batches-py/ in {real_data}")
    here = DataPlace(root=real_data, cache=tmp_path, offline=True, notice=lambda message: None)
    dataset = Image().load(here, Image().recipe(Spec("pt-2x64")), 0, "validation")
    assert dataset.provenance.fidelity == "official"
    assert dataset.provenance.counts == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert np.bincount(dataset.validation.labels).tolist() == [500] * 10


def test_a_smaller_image_is_the_mean_of_its_blocks_and_says_so(place: DataPlace, batches: Path) -> None:
    whole = Image().load(place, ALL, 0, "test")
    small = Image().load(place, replace(ALL, length=256), 0, "test")
    assert "images averaged to 16 × 16 pixels instead of 32 × 32" in small.provenance.notes
    assert small.provenance.source == "cifar-10-batches-py tree, averaged to 16 × 16 pixels"
    assert small.train.labels.tolist() == whole.train.labels.tolist() and small.test.labels.tolist() != []
    for big, little in zip(whole.train.sequences(), small.train.sequences(), strict=True):
        blocks = (big.astype(int) - 1).reshape(16, 2, 16, 2)
        expected = [[blocks[y, :, x].sum() // 4 + 1 for x in range(16)] for y in range(16)]
        assert little.tolist() == np.array(expected).reshape(-1).tolist()


def test_any_other_length_cuts_and_says_so(place: DataPlace, batches: Path) -> None:
    cut = Image().load(place, replace(ALL, length=500), 0, "validation").provenance
    assert "images cut to their first 500 of 1,024 pixels" in cut.notes
    assert not any("images" in note for note in Image().load(place, ALL, 0, "validation").provenance.notes[1:])
