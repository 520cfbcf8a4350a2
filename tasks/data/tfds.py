"""TFDS exports: prepared data as array_record sets of TensorFlow Datasets, written without TensorFlow."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..contract import DataPlace, Split
from .prepared import CachedData, open_prepared, write_errors
from .sources import METADATA, VERSION, ExportMetadata, dataset_of, import_tfds

COLUMNS = ("tokens", "tokens_of_second")
"""Token ids of an example, and of the second sequence of a pair."""


def export(stored: CachedData, folder: Path, place: DataPlace) -> Path:
    """Write prepared data as the TFDS set `folder`/task/hash/1.0.0, unless it is there, and return that path.

    Examples keep their order. A killed export leaves nothing that looks complete. Raises DataError without the extra
    `tfds`, and where `folder` cannot be written.
    """
    tfds = import_tfds()
    prepared = open_prepared(stored.folder)
    name, config = dataset_of(stored.task), stored.folder.name.rpartition("-")[2]
    path = folder / name / config / VERSION
    if (path / METADATA).is_file():
        return path
    towers = max(split.towers for split in prepared.splits.values())
    columns = COLUMNS[:towers]
    metadata = msgspec.to_builtins(
        ExportMetadata(task=stored.task, columns=columns, provenance=prepared.provenance, repeated=prepared.repeated)
    )
    ids = tfds.features.Tensor(shape=(None,), dtype=np.uint16)
    features = tfds.features.FeaturesDict(
        {**dict.fromkeys(columns, ids), "label": tfds.features.Scalar(dtype=np.int64)}
    )
    generators = {split: _examples(split, each, columns, place) for split, each in prepared.splits.items()}

    def info(builder: Any) -> Any:
        # the order of prepared data has a meaning: slices and validation are drawn by position
        return tfds.core.DatasetInfo(
            builder=builder, features=features, disable_shuffling=True, metadata=tfds.core.MetadataDict(metadata)
        )

    # the class is made anew for each export; TFDS would refuse to register a second one of the same name
    with tfds.core.registered.skip_registration():
        builder_class = type(
            "".join(part.capitalize() for part in name.split("_")),
            (tfds.core.GeneratorBasedBuilder,),
            {
                "name": name,
                "VERSION": tfds.core.Version(VERSION),
                "BUILDER_CONFIGS": [tfds.core.BuilderConfig(name=config, version=VERSION)],
                "_info": info,
                "_split_generators": lambda self, downloads: generators,
                "_generate_examples": lambda self: iter(()),
                "__module__": __name__,
            },
        )
    with write_errors(folder), _quiet(tfds):
        folder.mkdir(parents=True, exist_ok=True)
        builder_class(data_dir=str(folder), config=config, file_format="array_record").download_and_prepare()
    return path


def _examples(
    name: str, split: Split, columns: tuple[str, ...], place: DataPlace
) -> Iterator[tuple[int, dict[str, Any]]]:
    for index in range(len(split)):
        sequences = {column: np.asarray(split.sequence(index, tower)) for tower, column in enumerate(columns)}
        yield index, {**sequences, "label": int(split.labels[index])}
        if index % 1_000 == 0 or index + 1 == len(split):
            place.progress(f"exporting {name}", index + 1, len(split))


@contextmanager
def _quiet(tfds: Any) -> Iterator[None]:
    """Silence TFDS: its progress bars and prints break ours."""
    tfds.disable_progress_bar()
    was, sys.stdout = sys.stdout, io.StringIO()
    try:
        yield
    finally:
        sys.stdout = was
        tfds.enable_progress_bar()
