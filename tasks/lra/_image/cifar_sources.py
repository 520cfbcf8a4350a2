"""Sources of CIFAR-10: the pickled batches of Krizhevsky 2009, read without running any code of the pickle."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ....bench.core.files import read_regular
from ...contract import DataError
from ...data.data import DataSource
from ...data.download import RemoteFile, members
from ...data.prepared import PreparedData
from ...data.sources import ArchiveSource, DownloadSource, FolderSource, TfdsSource
from ...data.tfds import ExportSource
from .cifar import NAME, Bytes, Images, arrange, is_whole

BATCHES = {"train": tuple(f"data_batch_{index}" for index in range(1, 6)), "test": ("test_batch",)}
FILES = (*BATCHES["train"], *BATCHES["test"])
MEMBER = r"(?:\./)?cifar-10-batches-py/(?:data_batch_[1-5]|test_batch)"
ESTIMATE = "some 10 s and 0.13 GB"
VALUES = 3 * 32 * 32
LARGEST = 100_000_000
"""Bytes of a batch; an official one has 31 million."""

ARCHIVE = RemoteFile(
    name="cifar-10-python.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    bytes=170_498_071,
)


def sources() -> tuple[DataSource, ...]:
    """Every way to the images, in the order in which they are tried."""
    name = "cifar-10-batches-py"
    tree = FolderSource(task=NAME, name=name, parts=FILES, archive=ARCHIVE.name, read=read_tree, estimate=ESTIMATE)
    archive = ArchiveSource(task=NAME, remote=ARCHIVE, read=read_archive, estimate=ESTIMATE)
    # preparing the set needs TensorFlow; reading a prepared one does not
    tfds = TfdsSource(task=NAME, dataset="cifar10", read=read_tfds, needs="TensorFlow", estimate=ESTIMATE)
    return tree, archive, tfds, ExportSource(task=NAME, fits=is_whole), DownloadSource(archive=archive)


def read_tree(root: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The images of an unpacked cifar-10-batches-py/."""
    return arrange(_joined({name: read_regular(root / name, LARGEST) for name in FILES}, root), source, files)


def read_archive(path: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The images of cifar-10-python.tar.gz."""
    contents = {name.rpartition("/")[2]: content for name, content in members(path, MEMBER)}
    return arrange(_joined(contents, path), source, files, verified=True)


def read_tfds(folder: Path, source: str, files: dict[str, str]) -> PreparedData:
    """The images of a prepared TFDS folder."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    images: Images = {}
    for split in BATCHES:
        rows = [
            (int(row["label"]), row["image"].transpose(2, 0, 1).reshape(-1)) for row in builder.as_data_source(split)
        ]
        images[split] = (np.array([label for label, _ in rows]), np.stack([pixels for _, pixels in rows]))
    return arrange(images, source, files)


def read_batch(content: bytes, where: str) -> tuple[Bytes, Bytes]:
    """Labels (images,) and pixels (images, 3072) of one batch file. Raises DataError for any other file."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        labels, pixels = np.asarray(batch[b"labels"], dtype=np.int64), batch[b"data"].array()
        if pixels.shape != (len(labels), VALUES) or not ((labels >= 0) & (labels < 10)).all():
            raise ValueError(f"{len(labels)} labels and pixels of shape {pixels.shape}")
    except Exception as error:
        raise DataError(
            f"{where} is no CIFAR-10 batch ({type(error).__name__}: {error}); expected labels from 0 to 9 and as many "
            f"rows of {VALUES:,} bytes; delete it, then `attnbench data get {NAME}`"
        ) from error
    return labels.astype(np.uint8), pixels


class _Array:
    """A stand-in for numpy arrays in a pickle: it keeps the state, and runs nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> Bytes:
        _, shape, kind, by_column, content = self.state
        if not isinstance(kind, _Kind) or kind.name not in ("u1", b"u1"):
            raise ValueError("expected an array of unsigned bytes")
        return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if by_column else "C")


class _Kind:
    """A stand-in for numpy dtypes in a pickle: it keeps the name."""

    def __init__(self, name: Any, *flags: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


def _encoded(text: str, encoding: str) -> bytes:
    # Python 3 writes bytes like this into a pickle that Python 2 can read
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"expected bytes as latin1, got {encoding!r}")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encoded,
}


class _Unpickler(pickle.Unpickler):
    """Replaces the five names that CIFAR-10's files use by stand-ins. It imports nothing, so no file can run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 file needs")
        return _ADMITTED[module, name]


def _joined(contents: dict[str, bytes], where: Path) -> Images:
    # a set without one batch would train and look like CIFAR-10
    missing = [name for name in FILES if name not in contents]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}")
    images: Images = {}
    for split, names in BATCHES.items():
        batches = [read_batch(contents[name], f"{where}, {name}") for name in names]
        images[split] = (np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches]))
    return images
