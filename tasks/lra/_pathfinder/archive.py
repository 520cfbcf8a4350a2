"""The official Pathfinder images: for each level, imgs/BATCH/sample_N.png and metadata/BATCH.npy, which is text."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...contract import Availability, DataError, DataPlace, Provenance, Split
from ...data.prepared import PreparedData, prepare, write_errors
from ...data.sources import ExportSource, checksum
from .paddles import Bytes
from .shards import OFFICIAL_EXAMPLES, scratch

BUILDER = 1
ROOTS = ("lra_release/lra_release", "lra_release", ".")
LEVELS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
LABEL = 3
"""Bytes of an image, and of the metadata of a batch."""
EMPTY = ("pathfinder32/curv_baseline", "imgs/0/sample_172.png")
"""The one file of the official archive that is empty. It is left out."""

SPLITS = {"train": 8, "validation": 1, "test": 1}
"""Long Range Arena's shares, in tenths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialImages:
    """The official images of one size and level under the data root."""

    task: str
    size: int
    level: str

    @property
    def name(self) -> str:
        return f"pathfinder{self.size}/{LEVELS[self.level]}"

    def folder(self, place: DataPlace) -> Path | None:
        """The folder with the images; None without such a folder."""
        folders = (place.root / root / self.name for root in ROOTS)
        return next((each for each in folders if (each / "metadata").is_dir() and (each / "imgs").is_dir()), None)

    def availability(self, place: DataPlace) -> Availability:
        folder = self.folder(place)
        has_pillow = importlib.util.find_spec("PIL") is not None
        wanted = place.root / ROOTS[1] / self.name
        return Availability(
            source=self.name,
            fidelity="official",
            ready=folder is not None and has_pillow,
            detail=str(folder or wanted),
            advice="pip install 'attnbench[images]'"
            if folder
            else f"put imgs/ and metadata/ of the archive in {wanted}",
            estimate=f"some minutes and {OFFICIAL_EXAMPLES * self.size**2 * 2 / 1e9:.1f} GB",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        """The images, prepared on first use; None if they are not here. Raises DataError if they do not read."""
        folder = self.folder(place)
        if folder is None:
            exported = ExportSource(task=self.task, fits=self.name.__eq__).prepared(place)
            return exported if isinstance(exported, PreparedData) else None
        if not self.availability(place).ready:
            raise DataError(f"expected Pillow to read {folder}; pip install 'attnbench[images]'")
        parts = ("metadata", *(f"imgs/{each.name}" for each in sorted((folder / "imgs").iterdir()) if each.is_dir()))
        files = {f"{self.name}/": checksum(place, self.task, folder, parts)}
        identity = {"source": "official", "files": files, "builder": BUILDER}
        # pixels are collected in a file of the cache, which is removed once they are prepared
        meanwhile = scratch(place, self.task, identity)
        prepared = prepare(place, self.task, identity, lambda: self.read(folder, files, place, meanwhile))
        shutil.rmtree(meanwhile, ignore_errors=True)
        return prepared

    def read(self, folder: Path, files: dict[str, str], place: DataPlace, meanwhile: Path) -> PreparedData:
        """Every image that the metadata name. The split of an image follows from the hash of its name.

        Long Range Arena splits by position in a TFDS set, whose order no other reader has.
        """
        rows = sorted(
            (hashlib.sha256(name.encode()).digest(), name, label)
            for name, label in metadata(folder)
            if not ((self.name, name) == EMPTY and not (folder / name).stat().st_size)
        )
        known_empty = self.name == EMPTY[0] and (folder / EMPTY[1]).is_file() and len(rows) == OFFICIAL_EXAMPLES - 1
        fidelity = "official" if len(rows) == OFFICIAL_EXAMPLES or known_empty else "surrogate"
        with write_errors(meanwhile):
            meanwhile.mkdir(parents=True, exist_ok=True)
            # all of Path-X is 6.6 GB
            pixels = np.lib.format.open_memmap(meanwhile / "pixels.npy", "w+", np.uint16, (len(rows), self.size**2))
        for index, (_, name, _) in enumerate(rows):
            # black is a pixel like any other and must not look like padding
            pixels[index] = gray_png(folder / name, self.size).reshape(-1).astype(np.uint16) + 1
            if index % 1_000 == 0 or index + 1 == len(rows):
                place.progress(f"reading {self.name}", index + 1, len(rows))
        labels = np.array([label for _, _, label in rows], dtype=np.int64)
        ends = np.cumsum([0, *SPLITS.values()]) * len(rows) // sum(SPLITS.values())
        splits = {
            split: Split.of_rows(pixels[low:high], labels[low:high])
            for split, low, high in zip(SPLITS, ends.tolist(), ends[1:].tolist(), strict=False)
        }
        # 200,000 images, or one less where the empty file is the missing one
        notes = () if fidelity == "official" else (f"{len(rows):,} images instead of {OFFICIAL_EXAMPLES:,}",)
        return PreparedData(
            splits=splits, provenance=Provenance(source=self.name, fidelity=fidelity, files=files, notes=notes)
        )


def metadata(folder: Path) -> Iterator[tuple[str, int]]:
    """The (path relative to `folder`, label) of each image. Raises DataError for a line that names no image.

    A line has: subpath, file name, index, label, then seven settings of the generator.
    """
    for path in sorted((folder / "metadata").glob("*.npy")):
        try:
            lines = path.read_bytes().decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: expected lines of text, and it does not read: {error}") from None
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) <= LABEL or fields[LABEL] not in ("0", "1"):
                raise DataError(
                    f"{path}, line {number}: expected subpath, file, index and a label of 0 or 1, got {line[:60]!r}"
                )
            # metadata come from outside: a path must not leave the folder
            relative = Path(fields[0]) / fields[1]
            if relative.is_absolute() or ".." in relative.parts or not (folder / relative).is_file():
                raise DataError(f"{path}, line {number}: expected an image in {folder}, got {str(relative)!r}")
            yield relative.as_posix(), int(fields[LABEL])


def gray_png(path: Path, size: int) -> Bytes:
    """Gray values (size, size) of an 8-bit PNG. Raises DataError for any other file."""
    from PIL import Image

    try:
        # size and mode stand in the header, before any pixel is unpacked
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "L" or image.size != (size, size):
                raise DataError(f"{path}: expected {size} × {size} gray pixels, got {image.size} of mode {image.mode}")
            return np.asarray(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is no image that reads ({error}); delete it and unpack it again") from error
