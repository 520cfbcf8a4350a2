"""CIFAR-10 in gray: pixels as token ids, in an order that follows from the content."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract import DataPlace, Ids, Provenance, Split
from ...data.prepared import PreparedData, prepare

NAME = "lra-image"
SIDE = 32
PIXELS = SIDE**2
AVERAGED = {(SIDE // block) ** 2: block for block in (2, 4)}
"""Tokens of a smaller image → side of the blocks of pixels that become one."""

BUILDER = 1
AVERAGE = ", averaged to "

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
    """Whether images of that source have all their pixels."""
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
