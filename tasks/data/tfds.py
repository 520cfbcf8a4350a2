"""Record sets: prepared data as TFDS array_record sets, written and read back without TensorFlow."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...bench.core.errors import DataError
from ...bench.core.record import Provenance
from ..contract import Availability, DataPlace, Split
from .checksums import file_checksum
from .data import Unavailable
from .prepared import Prepared, Stored, open_prepared, prepare, writing
from .sources import tfds_roots

VERSION = "1.0.0"
METADATA = "metadata.json"
COLUMNS = ("tokens", "tokens_of_second")
"""Token ids of an example, and of the second sequence of a pair."""


def any_origin(source: str) -> bool:
    """Whatever it was made from will do."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSet:
    """Prepared data of a task that `export` wrote, in TFDS_DATA_DIR, the data root or ~/tensorflow_datasets.

    `fits`: whether what it was made from, by the name in its provenance, is what is wanted.
    """

    task: str
    fits: Callable[[str], bool] = field(default=any_origin, repr=False)

    def availability(self, place: DataPlace) -> Availability:
        folder = self.folder(place)
        installed = importlib.util.find_spec("tensorflow_datasets") is not None
        return Availability(
            source=f"TFDS {dataset_of(self.task)}",
            fidelity=_metadata(folder)["provenance"]["fidelity"] if folder else "official",
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
                if found.get("task") == self.task and self.fits(found["provenance"]["source"]):
                    return path.parent
        return None

    def prepared(self, place: DataPlace) -> Prepared | Unavailable:
        folder = self.folder(place)
        if folder is None or not self.availability(place).ready:
            return Unavailable(reason=f"no TFDS {dataset_of(self.task)} that `attnbench data export` wrote, or no tfds")
        records = sorted(folder.glob("*.array_record-*"))
        files = {path.name: file_checksum(place, self.task, path) for path in records}
        return prepare(place, self.task, {"source": "record set", "files": files}, lambda: _read(folder, place))

    def read(self, place: DataPlace) -> Prepared | None:
        """The data as a build of the same data would yield it; None where there is none to be read."""
        folder = self.folder(place)
        return _read(folder, place) if folder is not None and self.availability(place).ready else None


def dataset_of(task: str) -> str:
    """The name of a task's TFDS set."""
    return task.replace("-", "_")


def export(stored: Stored, folder: Path, place: DataPlace) -> Path:
    """Writes prepared data as the TFDS set `folder`/task/hash/1.0.0 unless it is there; returns that path.

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
    metadata = {
        "task": stored.task,
        "columns": list(columns),
        "provenance": asdict(prepared.provenance),
        "repeated": {split: list(indices) for split, indices in prepared.repeated.items()},
    }
    ids = tfds.features.Tensor(shape=(None,), dtype=np.uint16)
    features = tfds.features.FeaturesDict(
        {**dict.fromkeys(columns, ids), "label": tfds.features.Scalar(dtype=np.int64)}
    )
    generators = {split: _examples(split, each, columns, place) for split, each in prepared.splits.items()}

    def info(builder: Any) -> Any:
        return tfds.core.DatasetInfo(
            builder=builder, features=features, disable_shuffling=True, metadata=tfds.core.MetadataDict(metadata)
        )

    # made anew for each export, and hence not registered
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
    with writing(folder), _quiet(tfds):
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


def _read(folder: Path, place: DataPlace) -> Prepared:
    metadata = _metadata(folder)
    columns, provenance = metadata["columns"], metadata["provenance"]
    builder = _tfds().builder_from_directory(str(folder))
    splits = {}
    for name in builder.info.splits:
        parts, lengths, labels = [], [0], []
        examples = builder.as_data_source(name)
        for index, example in enumerate(examples):
            parts += [example[column] for column in columns]
            lengths += [len(example[column]) for column in columns]
            labels.append(int(example["label"]))
            if index % 1_000 == 0 or index + 1 == len(examples):
                place.progress(f"reading {folder.parent.parent.name}", index + 1, len(examples))
        splits[name] = Split(
            tokens=np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16),
            starts=np.cumsum(lengths, dtype=np.int64),
            labels=np.array(labels, dtype=np.int64),
            towers=len(columns),
        )
    return Prepared(
        splits=splits,
        provenance=Provenance(**provenance | {"notes": tuple(provenance["notes"])}),
        repeated={name: tuple(indices) for name, indices in metadata["repeated"].items()},
    )


def _metadata(folder: Path) -> dict[str, Any]:
    """What `export` wrote beside the records; empty for a set of someone else's."""
    try:
        found = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = {field.name for field in fields(Provenance)}
    sound = (
        isinstance(found, dict)
        and {"task", "columns", "provenance", "repeated"} <= found.keys()
        and {"source", "fidelity", "notes"} <= found["provenance"].keys() <= known
    )
    return found if sound else {}


def _tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"record sets need TFDS ({error}); pip install 'attnbench[tfds]' (no TensorFlow)") from error
    return tfds


@contextmanager
def _quiet(tfds: Any) -> Iterator[None]:
    """Without TFDS's own bars and prints, which tear ours."""
    tfds.disable_progress_bar()
    was, sys.stdout = sys.stdout, io.StringIO()
    try:
        yield
    finally:
        sys.stdout = was
        tfds.enable_progress_bar()
