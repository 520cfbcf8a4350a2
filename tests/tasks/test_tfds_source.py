import sys

import numpy as np
import pytest

from attnbench.tasks.contract import DataPlace, Recipe
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
