import io
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from attnbench.tasks.contract import DataPlace, Recipe
from attnbench.tasks.lra._image.cifar import gray, pixel_ids
from attnbench.tasks.lra.image import Image
from attnbench.tasks.lra.text import Text

pytestmark = pytest.mark.filterwarnings("ignore")
tfds = pytest.importorskip("tensorflow_datasets", reason="the extra `tfds` is not installed")

ROWS = {
    "train": [{"text": f"train {i} café".encode(), "label": i % 2} for i in range(20)],
    "test": [{"text": f"test {i}".encode(), "label": i % 2} for i in range(10)],
    "unsupervised": [{"text": b"no label", "label": -1}],
}


class ImdbReviews(tfds.core.GeneratorBasedBuilder):  # type: ignore[name-defined,misc]
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="plain_text", version="1.0.0")]

    def _info(self):  # type: ignore[no-untyped-def]
        label = tfds.features.ClassLabel(names=["neg", "pos"])
        features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, downloads):  # type: ignore[no-untyped-def]
        return {split: enumerate(rows) for split, rows in ROWS.items()}

    def _generate_examples(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError("the generators above are all there is")


@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
def test_reviews_prepared_by_tfds_are_read_without_tensorflow(place: DataPlace, file_format: str) -> None:
    ImdbReviews(data_dir=str(place.root), config="plain_text", file_format=file_format).download_and_prepare()
    dataset = Text().load(place, Recipe(), 0, "test")
    assert dataset.provenance.source == "TFDS imdb_reviews/plain_text" and dataset.provenance.fidelity == "surrogate"
    assert sorted(name.split(".")[0] for name in dataset.provenance.files) == [
        "imdb_reviews-test",
        "imdb_reviews-train",
    ]
    texts = {
        (bytes((ids - 1).astype(np.uint8)), int(n))
        for ids, n in zip(dataset.train.sequences(), dataset.train.labels, strict=True)
    }
    assert texts == {(row["text"], row["label"]) for row in ROWS["train"]} and len(dataset.test) == 10
    assert "tensorflow" not in sys.modules


class Cifar10(tfds.core.GeneratorBasedBuilder):  # type: ignore[name-defined,misc]
    VERSION = tfds.core.Version("3.0.2")

    def _info(self):  # type: ignore[no-untyped-def]
        features = tfds.features.FeaturesDict(
            {
                "id": tfds.features.Text(),
                "image": tfds.features.Image(shape=(32, 32, 3)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, downloads):  # type: ignore[no-untyped-def]
        # as PNG: TFDS encodes arrays with TensorFlow alone
        return {split: enumerate(encoded(images(split))) for split in ("train", "test")}

    def _generate_examples(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError("the generators above are all there is")


def images(split: str) -> list[dict[str, object]]:
    draw = np.random.default_rng(len(split))
    pixels = draw.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    return [{"id": f"{split}_{at}", "image": image, "label": at % 10} for at, image in enumerate(pixels)]


def encoded(rows: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    from PIL import Image as Pillow

    for row in rows:
        file = io.BytesIO()
        Pillow.fromarray(np.asarray(row["image"])).save(file, format="PNG")
        file.seek(0)
        yield row | {"image": file}


def test_images_prepared_by_tfds_are_read_without_tensorflow(place: DataPlace) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    Cifar10(data_dir=str(place.root), file_format="array_record").download_and_prepare()
    dataset = Image().load(place, Recipe(length=1024), 0, "test")
    assert dataset.provenance.source == "TFDS cifar10" and dataset.provenance.fidelity == "surrogate"
    found = {
        (row.tobytes(), int(label)) for row, label in zip(dataset.train.sequences(), dataset.train.labels, strict=True)
    }
    expected = set()
    for row in images("train"):
        planes = np.asarray(row["image"]).transpose(2, 0, 1).reshape(1, -1)
        expected.add((pixel_ids(gray(planes))[0].tobytes(), row["label"]))
    assert found == expected and len(dataset.test) == 20
    assert "tensorflow" not in sys.modules
