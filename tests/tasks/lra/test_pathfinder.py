import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError, SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Dataset, Provenance, Recipe, Split
from attnbench.tasks.lra._pathfinder import archive as pathfinder_archive
from attnbench.tasks.lra._pathfinder import shards
from attnbench.tasks.lra._pathfinder.archive import metadata
from attnbench.tasks.lra._pathfinder.images import SIZE_SETTINGS, Scene, draw, stretch_contrast
from attnbench.tasks.lra._pathfinder.paddles import displacement, downsampled, lanczos, line, paddles
from attnbench.tasks.lra._pathfinder.random_streams import Streams, key
from attnbench.tasks.lra._pathfinder.shards import make, make_shard
from attnbench.tasks.lra._pathfinder.snakes import Occupancy, _seed, inside
from attnbench.tasks.lra.image import mean_intensity
from attnbench.tasks.lra.pathfinder import Pathfinder, PathX

SMOKE = Spec.parse("smoke")


@pytest.fixture(scope="module")
def drawing():
    return draw(Scene(), 0, 600)


def test_shrinking_is_pillows_lanczos() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for size, target in ((64, 32), (256, 128), (17, 9), (41, 21)):
        noise = np.random.default_rng(0).integers(0, 256, (size, size)).astype(np.uint8)
        theirs = np.asarray(image.fromarray(noise).resize((target, target), image.Resampling.LANCZOS))
        off = np.abs(downsampled(noise, lanczos(size, target), lanczos(size, target)).astype(int) - theirs)
        # theirs works in fixed point, so that a half may fall on the other side
        assert off.max() <= 1 and off.mean() < 0.001


def test_a_thin_line_is_pillows() -> None:
    pillow = pytest.importorskip("PIL.ImageDraw", reason="Pillow is not installed")
    for degree in range(0, 360, 7):
        target = displacement(4, np.deg2rad([degree]))[0]
        theirs = pillow.Image.new("L", (17, 17))
        pillow.Draw(theirs).line([(8, 8), (8 + int(target[1]), 8 + int(target[0]))], fill=255, width=1)
        assert (line(17, 8, target, 1) == np.asarray(theirs)).all(), degree


def test_streams_are_independent_of_one_another_and_even() -> None:
    keys = key(np.array([7], dtype=np.uint64), np.arange(1_000))
    rows, alone = np.arange(1_000), Streams(keys[5:6])
    together = Streams(keys)
    drawn = np.stack([together.below(rows, 10) for _ in range(50)])
    assert [int(alone.below(np.array([0]), 10)[0]) for _ in range(50)] == drawn[:, 5].tolist()
    expected = drawn.size / 10
    assert ((np.bincount(drawn.reshape(-1), minlength=10) - expected) ** 2 / expected).sum() < 30


def test_an_image_depends_on_its_number_alone(drawing) -> None:
    some = draw(Scene(), 37, 5)
    assert (some.images == drawing.images[37:42]).all() and (some.labels == drawing.labels[37:42]).all()
    other = draw(Scene(seed=1), 37, 5)
    assert (other.images != some.images).any((1, 2)).all()


@pytest.mark.parametrize(("level", "length", "distractors"), [("easy", 6, 10), ("intermediate", 9, 6), ("hard", 14, 5)])
def test_contours_and_distractors_have_the_lengths_of_their_level(level: str, length: int, distractors: int) -> None:
    drawing = draw(Scene(level=level), 0, 20)
    assert drawing.snakes.kinds.shape == (20, 2, length) and (drawing.snakes.kinds >= 0).all()
    assert drawing.distractors.kinds.shape == (20, distractors, length // 3)
    assert ((drawing.distractors.kinds >= 0).all(-1) == (drawing.distractors.kinds >= 0).any(-1)).all()


def test_label_1_means_that_both_markers_are_on_one_contour(drawing) -> None:
    meeting = 0
    for label, markers, starts in zip(drawing.labels, drawing.markers, drawing.snakes.starts, strict=True):
        origins = {snake for snake in (0, 1) if (starts[snake, 0] == markers[0]).all()}
        terminals = {snake for snake in (0, 1) if (starts[snake, -1] == markers[1]).all()}
        assert len(origins) == 1 and terminals
        # two last paddles never see each other, as in the original, and may end on one pixel
        meeting += len(terminals) == 2
        assert len(terminals) == 2 or (origins == terminals) == bool(label)
    assert meeting <= 5


@pytest.mark.parametrize("size", [32, 128])
def test_no_paddle_grows_into_what_is_occupied(size: int) -> None:
    """The growth is replayed paddle by paddle on whole images, in fractions, dilated by scipy."""
    ndimage = pytest.importorskip("scipy.ndimage", reason="scipy is not installed")
    drawing = draw(Scene(size=size), 0, 6)
    settings = SIZE_SETTINGS[size]
    distractor_length = drawing.distractors.kinds.shape[2]
    for index, margin in enumerate(drawing.margins.tolist()):
        table = paddles(Scene(size=size).stroke(margin))
        reach = table.stroke.reach
        disk = np.hypot(*np.mgrid[-margin : margin + 1, -margin : margin + 1]) <= margin
        mask = np.ones((size, size))
        mask[1:-1, 1:-1] = 0

        def placed(kind, start, table=table, reach=reach):
            around = np.zeros((size + 4 * reach, size + 4 * reach))
            y, x = start + reach
            around[y : y + 2 * reach + 1, x : x + 2 * reach + 1] = table.masks[kind] / 255
            return around[2 * reach : -2 * reach, 2 * reach : -2 * reach]

        def extend(kinds, starts, at, mask, placed=placed, disk=disk):
            new = placed(kinds[at], starts[at])
            assert (mask + new).max() < 1.8
            assert ndimage.grey_dilation(mask, footprint=disk)[tuple(starts[at])] < 1
            return np.maximum(mask, placed(kinds[at - 1], starts[at - 1]))

        kinds, starts = drawing.snakes.kinds[index], drawing.snakes.starts[index]
        assert abs(np.linalg.norm(starts[0, 0] - starts[1, 0]) - settings.distance) < 0.75
        for at in range(1, 14):
            for snake in (0, 1):
                mask = extend(kinds[snake], starts[snake], at, mask)
        mask = np.maximum(mask, placed(kinds[1, -1], starts[1, -1]))
        for kinds, starts in zip(drawing.distractors.kinds[index], drawing.distractors.starts[index], strict=True):
            if kinds[0] < 0:
                continue
            first = placed(kinds[0], starts[0])
            assert (mask + first).max() < 2
            for at in range(1, distractor_length):
                mask = extend(kinds, starts, at, mask)
            mask = np.maximum(mask, placed(kinds[-1], starts[-1]))


def test_images_look_like_the_reference(drawing) -> None:
    """32-hard there: 66 % of pixels black, mean 20.3; 128-hard: 86 % black (83.0 and 85.8 % in two published ones)."""
    assert abs((drawing.images == 0).mean() - 0.66) < 0.01 and abs(drawing.images.mean() - 20.3) < 0.5
    assert abs((draw(Scene(size=128), 0, 32).images == 0).mean() - 0.86) < 0.01


def test_labels_are_balanced_and_brightness_tells_nothing(drawing) -> None:
    ids = drawing.images.reshape(len(drawing.images), -1).astype(np.uint16) + 1
    half = len(ids) // 2
    train, test = (Split.of_rows(ids[rows], drawing.labels[rows]).all() for rows in (slice(half), slice(half, None)))
    dataset = Dataset(
        train=train, validation=test, test=test, provenance=Provenance(source="x", fidelity="regenerated")
    )
    assert abs(drawing.labels.mean() - 0.5) < 0.05
    right = (mean_intensity(dataset, Recipe()) == test.labels).mean()
    assert abs(right - 0.5) < 3 * 0.5 / np.sqrt(len(test))


def test_gray_values_are_stretched_image_by_image(drawing) -> None:
    assert (drawing.images.min((1, 2)) == 0).all() and (drawing.images.max((1, 2)) == 255).all()
    ink = np.random.default_rng(0).integers(0, 50_000, (3, 8, 8))
    low, high = ink.min((1, 2), keepdims=True), ink.max((1, 2), keepdims=True)
    assert (stretch_contrast(ink) == np.floor((ink - low) * 255.0 / (high - low) + 0.5)).all()


def test_several_processes_make_what_one_makes(
    tmp_path: Path, place: DataPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shards.IMAGES, 32, 10)
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        make(Scene(), 25, tmp_path / str(workers), place, workers=workers)
    one, two = (sorted((tmp_path / str(workers)).iterdir()) for workers in (1, 2))
    assert [path.name for path in one] == [path.name for path in two] == ["0-10.npy", "10-10.npy", "20-5.npy"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_killed_build_goes_on_where_it_stopped(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shards.IMAGES, 32, 10)
    made = []

    def stop_at_20(scene: Scene, first: int, count: int, folder: Path) -> None:
        if first == 20 and first not in made:
            made.append(first)
            raise KeyboardInterrupt
        made.append(first)
        make_shard(scene, first, count, folder)

    monkeypatch.setattr(shards, "make_shard", stop_at_20)
    monkeypatch.setattr(shards, "cores", lambda: 1)
    task = Pathfinder(examples=40)
    recipe = Recipe(length=1024, validation_examples=None)
    with pytest.raises(KeyboardInterrupt):
        task.load(place, recipe, 0, "validation")
    [folder] = (place.cache / "shards").iterdir()
    (folder / "0-10.npy").write_bytes(b"torn")
    dataset = task.load(place, recipe, 0, "validation")
    assert made == [0, 10, 20, 0, 20, 30] and not folder.exists()
    assert dataset.provenance.counts == {"train": 32, "validation": 4, "test": 4}
    ids = dataset.test.split.sequence(1).reshape(32, 32)
    assert (ids - 1 == draw(Scene(), 19, 1).images[0]).all()


def test_black_is_no_padding_and_provenance_says_what_was_made(place: DataPlace) -> None:
    task = Pathfinder()
    dataset = task.load(place, task.recipe(SMOKE), 0, "validation")
    problem, ids = task.problem(), dataset.train.split.tokens
    assert (problem.vocabulary, problem.classes, problem.padded) == (257, 2, False)
    assert ids.min() == 1 and ids.max() == 256
    assert dataset.provenance.fidelity == "regenerated" and "200 images instead of 200,000" in dataset.provenance.notes
    assert dataset.provenance.counts == {"train": 160, "validation": 8, "test": 16}


def test_an_image_of_another_size_is_read_whole() -> None:
    assert Pathfinder(size=64).recipe(Spec.parse("quick")).length == 4_096
    assert Pathfinder(size=64).recipe(Spec.parse("quick[length=100]")).length == 100


def test_path_x_is_not_made_unasked(place: DataPlace) -> None:
    port = Spec.parse("pt-2x64")
    assert PathX().recipe(port).length == 16_384
    with pytest.raises(DataError, match=r"200,000 images: some .* 'lra-pathx\[examples=200000\]'"):
        PathX().load(place, PathX().recipe(port), 0, "validation")
    with pytest.raises(SelectionError, match="it has: smoke, pt-2x64"):
        PathX().recipe(Spec.parse("quick"))
    told = PathX().availability(place)[-1].detail
    assert "only after `attnbench data get 'lra-pathx[examples=200000]' --preset pt-2x64`" in told
    asked = PathX(examples=10)
    assert asked.availability(place)[-1].detail == "made on this machine"
    assert asked.load(place, asked.recipe(port), 0, "validation").provenance.counts["train"] == 8


def test_smoke_of_path_x_says_that_it_cuts(place: DataPlace) -> None:
    dataset = PathX(examples=10).load(place, PathX().recipe(SMOKE), 0, "validation")
    assert "images cut to their first 512 of 16,384 pixels" in dataset.provenance.notes
    assert len(dataset.train.split.sequence(0)) == 16_384


@pytest.fixture
def official(place: DataPlace) -> Path:
    """A small tree in the official layout: 20 images, of which the number is in the first pixels."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    root = place.root / "lra_release" / "pathfinder32" / "curv_contour_length_14"
    (root / "metadata").mkdir(parents=True)
    for batch in (0, 1):
        (root / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for index in range(10):
            pixels = np.full((32, 32), 9, dtype=np.uint8)
            pixels[0, :2] = batch, index
            image.fromarray(pixels).save(root / "imgs" / str(batch) / f"sample_{index}.png")
            lines.append(f"imgs/{batch} sample_{index}.png {index} {index % 2} 1.0 14 4 2 0.5 1 1")
        (root / "metadata" / f"{batch}.npy").write_text("\n".join(lines) + "\n")
    return root


def test_the_official_layout_is_read(place: DataPlace, official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Pathfinder()
    assert [way.ready for way in task.availability(place)] == [True, True]
    dataset = task.load(place, Recipe(length=1024, validation_examples=None), 0, "validation")
    assert dataset.provenance.counts == {"train": 16, "validation": 2, "test": 2}
    assert dataset.provenance.fidelity == "surrogate" and "20 images instead of 200,000" in dataset.provenance.notes
    seen = set()
    for subset in (dataset.train, dataset.validation, dataset.test):
        for ids, label in zip(subset.sequences(), subset.labels.tolist(), strict=True):
            assert label == (ids[1] - 1) % 2 and (ids[2:] == 10).all()
            seen.add((int(ids[0]), int(ids[1])))
    assert len(seen) == 20 and list((place.cache / "shards").iterdir()) == []
    monkeypatch.setattr(pathfinder_archive, "OFFICIAL_EXAMPLES", 20)
    found = task.official()
    files = dict(dataset.provenance.files)
    assert found.read(official, files, place, place.cache / "meanwhile").provenance.fidelity == "official"


def test_membership_of_official_splits_follows_from_names(place: DataPlace, official: Path) -> None:
    found = Pathfinder().official()
    before = found.read(official, {}, place, place.cache / "a").splits["train"].tokens.copy()
    # the metadata of both batches in one file and the other order: what a folder lists first must not matter
    texts = [path.read_text() for path in sorted((official / "metadata").iterdir())]
    (official / "metadata" / "0.npy").write_text(texts[1] + texts[0])
    (official / "metadata" / "1.npy").unlink()
    assert (found.read(official, {}, place, place.cache / "b").splits["train"].tokens == before).all()


def test_the_empty_official_file_is_passed_over(place: DataPlace, official: Path) -> None:
    easy = official.parent / "curv_baseline"
    official.rename(easy)
    (easy / "imgs" / "0" / "sample_9.png").rename(easy / "imgs" / "0" / "sample_172.png")
    (easy / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    text = (easy / "metadata" / "0.npy").read_text()
    (easy / "metadata" / "0.npy").write_text(text.replace("sample_9.png", "sample_172.png"))
    splits = Pathfinder(level="easy").official().read(easy, {}, place, place.cache / "a").splits
    assert sum(len(split) for split in splits.values()) == 19


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/0 sample_0.png 0 7 1.0", "label of 0 or 1"),
        ("imgs/0 sample_0.png", "label of 0 or 1"),
        ("imgs/0 sample_99.png 0 1", "expected an image in"),
        ("../../.. secret 0 1", "expected an image in"),
    ],
)
def test_metadata_that_names_no_image_is_refused(official: Path, line: str, message: str) -> None:
    (official / "metadata" / "0.npy").write_text(line)
    with pytest.raises(DataError, match=message):
        list(metadata(official))


def test_a_damaged_image_is_named(place: DataPlace, official: Path) -> None:
    (official / "imgs" / "1" / "sample_3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"sample_3\.png is no image that reads"):
        Pathfinder().official().read(official, {}, place, place.cache / "a")


def test_no_worker_outlives_its_parent() -> None:
    """A builder that is killed leaves no process behind that would go on generating."""
    import signal
    import subprocess
    import sys
    import time

    code = (
        "import multiprocessing as m, time, sys\n"
        "from attnbench.tasks.lra._pathfinder.shards import _end_with_parent\n"
        "def work():\n    _end_with_parent()\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    p = m.get_context('fork').Process(target=work); p.start(); print(p.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the worker went on")


def test_a_distractor_that_would_begin_outside_of_the_image_is_drawn_again() -> None:
    table = paddles(Scene(size=64).stroke(1))
    assert inside(np.stack([table.heads[37], table.pivots[37]]), 64).sum() == 1
    # a direction and the number of a free start, twice: the first start is the corner
    drawn = iter([37, 0, 37, 500])
    streams = SimpleNamespace(below=lambda rows, bound: np.array([next(drawn)]))
    degree, start = _seed(Occupancy(1, 64, 1, table), streams, 0)
    assert degree == 37 and start != (0, 0) and next(drawn, None) is None
    assert inside(np.stack([table.heads[37], table.pivots[37]]) + start, 64).all()
