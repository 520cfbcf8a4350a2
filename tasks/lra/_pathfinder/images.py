"""Images: whole Pathfinder images, each drawn from its number alone.

The generator of Linsley et al. 2018 with Long Range Arena's settings, as its code of 2019 ran: the gray values of each
image are stretched from its darkest to its brightest. All numbers are whole, so every machine draws the same images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ....bench.core.hashing import axis_seed
from .contours import ContourSettings, grow
from .paddles import ANTIALIAS, Bytes, Paddles, Stroke, disk, downsampled, lanczos, paddles
from .random_streams import Streams, key
from .snakes import Snakes, grow_distractors

VERSION = 1
SEED = 0
BORDER = 1
TRIES = 5
"""Attempts at a distractor before an image does without it."""

MARKER = 100
"""The contrast of a marker; contrasts are in hundredths."""

PADDLES = {"easy": 6, "intermediate": 9, "hard": 14}
"""Paddles of a contour by level. A distractor has a third of them."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSettings:
    """Long Range Arena's settings for an image size, in pixels.

    `length`, `thickness`, `margins`, `continuity`: of a paddle, see `Stroke`. `distance`: between the starts of the two
    contours; `marker`: radius of a marker; `distractor_paddles`: of all distractors together; `target`, `distractor`:
    contrasts. `slots`: attempts that run side by side, which changes the time and no image.
    """

    length: int
    thickness: float
    margins: tuple[int, ...]
    distance: int
    marker: float
    continuity: float
    distractor_paddles: int
    target: int
    distractor: int
    slots: int


SIZE_SETTINGS = {
    32: SizeSettings(
        length=2,
        thickness=0.5,
        margins=(1,),
        distance=7,
        marker=1.5,
        continuity=1.0,
        distractor_paddles=20,
        target=150,
        distractor=200,
        slots=256,
    ),
    64: SizeSettings(
        length=5,
        thickness=1.0,
        margins=(1,),
        distance=12,
        marker=2.5,
        continuity=1.8,
        distractor_paddles=22,
        target=80,
        distractor=80,
        slots=128,
    ),
    128: SizeSettings(
        length=5,
        thickness=1.5,
        margins=(2, 3),
        distance=20,
        marker=3.0,
        continuity=1.8,
        distractor_paddles=35,
        target=90,
        distractor=90,
        slots=64,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The settings of an image: one of SIZE_SETTINGS at one of the levels of PADDLES."""

    size: int = 32
    level: str = "hard"
    seed: int = SEED

    @property
    def settings(self) -> SizeSettings:
        return SIZE_SETTINGS[self.size]

    @property
    def paddles(self) -> int:
        return PADDLES[self.level]

    def stroke(self, margin: int) -> Stroke:
        settings = self.settings
        return Stroke(
            length=settings.length, thickness=settings.thickness, margin=margin, continuity=settings.continuity
        )


@dataclass(frozen=True, eq=False)
class Drawing:
    """n images (n, size, size) with labels (n,), and their content.

    margins: (n,), of the paddles of each image. markers: (n, 2, 2), the origin and the terminal tip that are marked.
    marked: (n, 2), the snakes that these tips belong to.
    """

    images: Bytes
    labels: Array
    margins: Array
    snakes: Snakes = field(repr=False)
    distractors: Snakes = field(repr=False)
    markers: Array
    marked: Array


def draw(scene: Scene, first: int, count: int) -> Drawing:
    """Draw images `first` to `first + count - 1` of a scene."""
    base = axis_seed(use="pathfinder", version=VERSION, size=scene.size, level=scene.level, seed=scene.seed)
    keys = key(np.array([base], dtype=np.uint64), np.arange(first, first + count))
    streams, rows = Streams(keys), np.arange(count)
    labels = streams.below(rows, 2)
    margins = np.array(scene.settings.margins)[streams.below(rows, len(scene.settings.margins))]
    origin = streams.below(rows, 2)
    # label 1: both markers are on the same snake
    marked = np.stack([origin, np.where(labels == 1, origin, 1 - origin)], axis=-1)
    distractor = scene.paddles // 3
    number = scene.settings.distractor_paddles // distractor
    drawing = Drawing(
        images=np.zeros((count, scene.size, scene.size), dtype=np.uint8),
        labels=labels,
        margins=margins,
        snakes=_blank(count, 2, scene.paddles),
        distractors=_blank(count, number, distractor),
        markers=np.zeros((count, 2, 2), dtype=np.int64),
        marked=marked,
    )
    contour = ContourSettings(size=scene.size, border=BORDER, distance=scene.settings.distance, paddles=scene.paddles)
    for margin in np.unique(margins).tolist():
        rows = np.flatnonzero(margins == margin)
        strokes = paddles(scene.stroke(margin))
        grown = grow(contour, strokes, keys[rows], scene.settings.slots)
        distractors = grow_distractors(grown.occupancy, grown.streams, number, distractor, TRIES)
        for whole, part in ((drawing.snakes, grown.snakes), (drawing.distractors, distractors)):
            whole.kinds[rows], whole.starts[rows] = part.kinds, part.starts
        origins = grown.snakes.starts[np.arange(len(rows)), marked[rows, 0], 0]
        terminals = grown.snakes.starts[np.arange(len(rows)), marked[rows, 1], -1]
        drawing.markers[rows] = np.stack([origins, terminals], axis=1)
        drawing.images[rows] = rendered(scene, strokes, grown.snakes, distractors, drawing.markers[rows])
    return drawing


def rendered(scene: Scene, strokes: Paddles, snakes: Snakes, distractors: Snakes, markers: Array) -> Bytes:
    """The images (n, size, size) of these snakes: the maximum of paddles and markers at each pixel, stretched."""
    size, reach = scene.size, strokes.stroke.reach
    rim = reach + 2
    # a rim around the images, so that no patch needs clipping
    ink = np.zeros((len(markers), size + 2 * rim, size + 2 * rim), dtype=np.int32)
    within = np.arange(2 * reach + 1)
    for group, contrast in ((snakes, scene.settings.target), (distractors, scene.settings.distractor)):
        flat_kinds = group.kinds.reshape(len(markers), -1)
        flat_starts = group.starts.reshape(len(markers), -1, 2)
        for at in range(flat_kinds.shape[1]):
            rows = np.flatnonzero(flat_kinds[:, at] >= 0)
            corner = flat_starts[rows, at] + rim - reach
            where = (
                rows[:, None, None],
                (corner[:, 0, None] + within)[:, :, None],
                (corner[:, 1, None] + within)[:, None, :],
            )
            ink[where] = np.maximum(ink[where], strokes.ink[flat_kinds[rows, at]].astype(np.int32) * contrast)
    ink = ink[:, rim:-rim, rim:-rim]
    for image, tips in zip(ink, markers.tolist(), strict=True):
        for y, x in tips:
            np.maximum(image, dot(size, y, x, scene.settings.marker).astype(np.int32) * MARKER, out=image)
    return stretch_contrast(ink)


def dot(size: int, y: int, x: int, radius: float) -> Bytes:
    """A white disk around a pixel, (size, size), drawn at twice the size and shrunk."""
    shape = disk(radius * ANTIALIAS)
    reach, weights = len(shape) // 2, lanczos(size * ANTIALIAS, size)
    fine = np.zeros((size * ANTIALIAS + 2 * reach, size * ANTIALIAS + 2 * reach), dtype=np.uint8)
    fine[y * ANTIALIAS : y * ANTIALIAS + len(shape), x * ANTIALIAS : x * ANTIALIAS + len(shape)] = shape * 255
    fine = fine[reach : reach + size * ANTIALIAS, reach : reach + size * ANTIALIAS]
    # the window has three lobes: pixels further away stay black and are not computed
    near = math.ceil(radius) + 4
    rows, columns = (slice(max(0, at - near), min(size, at + near + 1)) for at in (y, x))
    fine_rows, fine_columns = (slice(part.start * ANTIALIAS, part.stop * ANTIALIAS) for part in (rows, columns))
    image = np.zeros((size, size), dtype=np.uint8)
    image[rows, columns] = downsampled(
        fine[fine_rows, fine_columns], weights[rows, fine_rows], weights[columns, fine_columns]
    )
    return image


def stretch_contrast(ink: Array) -> Bytes:
    """Gray values (n, size, size) as bytes: the darkest of each image becomes 0, its brightest 255; halves round up."""
    low = ink.min((1, 2), keepdims=True).astype(np.int64)
    span = ink.max((1, 2), keepdims=True) - low
    gray: Bytes = ((2 * 255 * (ink - low) + span) // np.maximum(2 * span, 1)).astype(np.uint8)
    return gray


def _blank(images: int, snakes: int, length: int) -> Snakes:
    return Snakes(
        kinds=np.full((images, snakes, length), -1), starts=np.zeros((images, snakes, length, 2), dtype=np.int64)
    )
