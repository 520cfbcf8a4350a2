"""CIFAR-10 in gray: pixels as token ids, in an order that follows from the content.

The pickled batches of Krizhevsky 2009 are read without running any code of the pickle.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract import DataError, DataPlace, Ids, Provenance, Split
from ...data.data import DataSource
from ...data.download import RemoteFile, members
from ...data.prepared import PreparedData, prepare
from ...data.sources import ArchiveSource, DownloadSource, ExportSource, FolderSource, TfdsSource

NAME = "lra-image"
SIDE = 32
PIXELS = SIDE**2
AVERAGED = {(SIDE // block) ** 2: block for block in (2, 4)}
"""Tokens of a smaller image → side of the blocks of pixels that become one."""

BUILDER = 1
AVERAGE = ", averaged to "

BATCHES = {"train": tuple(f"data_batch_{index}" for index in range(1, 6)), "test": ("test_batch",)}
FILES = (*BATCHES["train"], *BATCHES["test"])
MEMBER = r"(?:\./)?cifar-10-batches-py/(?:data_batch_[1-5]|test_batch)"
ESTIMATE = "some 10 s and 0.13 GB"
VALUES = 3 * 32 * 32

ARCHIVE = RemoteFile(
    name="cifar-10-python.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    bytes=170_498_071,
)

OFFICIAL_CONTENT = "a0b3a6529d4140c6381dd59df5ffe8e97926ce7c82a71242197f0b363c6b730e"
"""`content_digest` of the 60,000 official images."""

Bytes = npt.NDArray[np.uint8]
Images = dict[str, tuple[npt.NDArray[Any], Bytes]]
"""Split → labels (images,) and pixels (images, 3072): red, green and blue planes in raster order."""

# TensorFlow's rgb_to_grayscale, which Long Range Arena calls on bytes: float32 scaled to [0, 1], weighted, scaled back
# by 255.5 and truncated. The weights sum to 0.9999, so white stays 255.
WEIGHTS = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
SCALE = np.float32(255.5)


def gray(pixels: Bytes) -> Bytes:
    """Gray values (images, 1024) of (images, 3072) planes."""
    # multiplied by 1/255 and not divided: TensorFlow does so, and the last bit decides some gray values
    planes = pixels.reshape(-1, 3, PIXELS).astype(np.float32) * np.float32(1 / 255)
    mixed = np.einsum("ncp,c->np", planes, WEIGHTS)
    shades: Bytes = (mixed * SCALE).astype(np.uint8)
    return shades


def pixel_ids(shades: Bytes) -> Ids:
    """Gray value + 1: black is a pixel like any other and must not look like padding."""
    return shades.astype(np.uint16) + np.uint16(1)


def content_digest(images: Images) -> str:
    """SHA-256 over (split, label, pixels), sorted. It is the same for every source and order."""
    digest = hashlib.sha256()
    for split in sorted(images):
        labels, pixels = images[split]
        digest.update(f"{split} {len(labels)}\n".encode())
        for row in sorted(bytes([label]) + row.tobytes() for label, row in zip(labels.tolist(), pixels, strict=True)):
            digest.update(row)
    return digest.hexdigest()


def arrange(images: Images, source: str, files: dict[str, str], verified: bool = False) -> PreparedData:
    """Images as prepared splits, ordered by content, so that every complete source yields the same arrays.

    `verified`: the original has its published checksum, so the content needs no check.
    """
    fidelity = "official" if verified or content_digest(images) == OFFICIAL_CONTENT else "surrogate"
    counts = ", ".join(f"{len(labels):,} {split}" for split, (labels, _) in images.items())
    notes = () if fidelity == "official" else (f"differs from the 60,000 official images ({counts} here)",)
    times = Counter(row.tobytes() for _, pixels in images.values() for row in pixels)
    splits, repeated = {}, {}
    for split, (labels, pixels) in images.items():
        rows = [(label, row.tobytes()) for label, row in zip(labels.tolist(), pixels, strict=True)]
        # by label, then pixels: positions mean the same images in every source
        order = sorted(range(len(rows)), key=rows.__getitem__)
        repeated[split] = tuple(index for index, at in enumerate(order) if times[rows[at][1]] > 1)
        splits[split] = Split.of_rows(pixel_ids(gray(pixels[order])), labels[order].astype(np.int64))
    provenance = Provenance(source=source, fidelity=fidelity, files=files, notes=notes)
    return PreparedData(splits=splits, provenance=provenance, repeated=repeated)


def at_length(prepared: PreparedData, length: int, place: DataPlace) -> PreparedData:
    """The same images at `length` tokens: whole, averaged in blocks, or cut. A note says what was left out."""
    if length >= PIXELS:
        return prepared
    if length not in AVERAGED:
        return prepared.with_note(f"images cut to their first {length:,} of {PIXELS:,} pixels")
    block, origin = AVERAGED[length], prepared.provenance

    side = SIDE // block
    smaller = f"{side} × {side} pixels"

    def build() -> PreparedData:
        splits = {name: _averaged(split, block) for name, split in prepared.splits.items()}
        provenance = replace(origin, source=f"{origin.source}{AVERAGE}{smaller}")
        return replace(prepared, splits=splits, provenance=provenance, folder=None)

    identity = {"averaged": block, "builder": BUILDER, "source": origin.source, "files": origin.files}
    averaged_images = prepare(place, NAME, identity, build)
    return averaged_images.with_note(f"images averaged to {smaller} instead of {SIDE} × {SIDE}")


def is_whole(source: str) -> bool:
    """True if images of that source have all their pixels."""
    return AVERAGE not in source


def averaged(shades: Bytes, block: int) -> Bytes:
    """Gray values (images, (32 / block)²): the mean of each block of pixels, rounded down as all gray values are."""
    side = SIDE // block
    means = shades.reshape(-1, side, block, side, block).mean((2, 4), dtype=np.float32)
    smaller: Bytes = means.astype(np.uint8).reshape(-1, side**2)
    return smaller


def _averaged(split: Split, block: int) -> Split:
    shades = (np.asarray(split.tokens) - 1).astype(np.uint8)
    return Split.of_rows(pixel_ids(averaged(shades, block)), split.labels)


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
    return arrange(_joined({name: (root / name).read_bytes() for name in FILES}, root), source, files)


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
