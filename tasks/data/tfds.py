"""TFDS exports: prepared data as array_record sets of TensorFlow Datasets, written and read without TensorFlow."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...bench.core.decode import read_json
from ...bench.core.errors import StoreError
from ..contract import Availability, DataError, DataPlace, Provenance, Split
from .checksums import file_checksum
from .prepared import CachedData, PreparedData, open_prepared, pack, prepare, write_errors
from .sources import tfds_roots

VERSION = "1.0.0"
METADATA = "metadata.json"
LARGEST_METADATA = 64_000_000
COLUMNS = ("tokens", "tokens_of_second")
"""Token ids of an example, and of the second sequence of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMetadata:
    """The content of metadata.json, which `export` writes beside the records."""

    task: str
    columns: tuple[str, ...]
    provenance: Provenance
    repeated: dict[str, tuple[int, ...]]


def any_origin(source: str) -> bool:
    """True for data of every origin."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """Prepared data of a task that `export` wrote, in TFDS_DATA_DIR, the data root or ~/tensorflow_datasets.

    `fits`: whether an export is wanted, given the source that its provenance names.
    """

    task: str
    fits: Callable[[str], bool] = field(default=any_origin, repr=False)

    def availability(self, place: DataPlace) -> Availability:
        folder = self.folder(place)
        metadata = _metadata(folder) if folder else None
        installed = importlib.util.find_spec("tensorflow_datasets") is not None
        return Availability(
            source=f"TFDS {dataset_of(self.task)}",
            fidelity=metadata.provenance.fidelity if metadata else "official",
            ready=folder is not None and installed,
            detail=str(folder) if folder else "no export of another machine's data",
            advice="pip install 'attnbench[tfds]'" if folder else f"attnbench data export {self.task} --tfds DIR there",
            estimate="some 10 s for 100,000 examples" if folder else "",
        )

    def folder(self, place: DataPlace) -> Path | None:
        """The first export that fits, by name."""
        for root in tfds_roots(place):
            for path in sorted(root.glob(f"{dataset_of(self.task)}/*/{VERSION}/{METADATA}")):
                found = _metadata(path.parent)
                if found and found.task == self.task and self.fits(found.provenance.source):
                    return path.parent
        return None

    def prepared(self, place: DataPlace) -> PreparedData | None:
        folder = self.folder(place)
        if folder is None or not self.availability(place).ready:
            return None
        # only the records: TFDS's own metadata files hold dates and versions
        records = sorted(folder.glob("*.array_record-*"))
        files = {path.name: file_checksum(place, self.task, path) for path in records}
        return prepare(place, self.task, {"source": "record set", "files": files}, lambda: _read(folder, place))

    def read(self, place: DataPlace) -> PreparedData | None:
        """The data as a build of the same data would yield it; None where no export can be read."""
        folder = self.folder(place)
        return _read(folder, place) if folder is not None and self.availability(place).ready else None


def dataset_of(task: str) -> str:
    """The name of a task's TFDS set. TFDS allows no hyphen in a name."""
    return task.replace("-", "_")


def export(stored: CachedData, folder: Path, place: DataPlace) -> Path:
    """Write prepared data as the TFDS set `folder`/task/hash/1.0.0, unless it is there, and return that path.

    Examples keep their order. A killed export leaves nothing that looks complete. Raises DataError without the extra
    `tfds`, and where `folder` cannot be written.
    """
    tfds = _tfds()
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


def _read(folder: Path, place: DataPlace) -> PreparedData:
    metadata = _metadata(folder)
    assert metadata is not None  # `folder` was found by it
    columns = metadata.columns
    builder = _tfds().builder_from_directory(str(folder))
    splits = {}
    for name in builder.info.splits:
        parts, labels = [], []
        examples = builder.as_data_source(name)
        for index, example in enumerate(examples):
            parts += [example[column] for column in columns]
            labels.append(int(example["label"]))
            if index % 1_000 == 0 or index + 1 == len(examples):
                place.progress(f"reading {folder.parent.parent.name}", index + 1, len(examples))
        splits[name] = pack(parts, labels, towers=len(columns))
    return PreparedData(splits=splits, provenance=metadata.provenance, repeated=metadata.repeated)


def _metadata(folder: Path) -> ExportMetadata | None:
    """The metadata of an export; None for a set that others made."""
    try:
        return read_json(ExportMetadata, folder / METADATA, LARGEST_METADATA, "metadata of an export")
    except (OSError, StoreError):
        return None


def _tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"TFDS exports need TFDS ({error}); pip install 'attnbench[tfds]' (no TensorFlow)") from error
    return tfds


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
