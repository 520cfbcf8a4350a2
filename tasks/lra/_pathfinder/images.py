"""Scenes: whole Pathfinder images, each drawn from its number alone.

Long Range Arena's settings of the generator of Linsley et al. 2018, with what that did in 2019: gray values are
stretched, image by image, from the darkest to the brightest. All of it is whole numbers, so that an image is the same
on every machine.
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
"""How often a distractor is tried before an image does without it."""

MARKER = 100
"""A marker's contrast; contrasts are in hundredths."""

PADDLES = {"easy": 6, "intermediate": 9, "hard": 14}
"""Paddles of a long snake; a distractor has a third of them."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSettings:
    """What Long Range Arena sets per image size. `distractor_paddles`: of all distractors together."""

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
    """What is drawn: one of LOOKS at one of the levels of PADDLES."""

    size: int = 32
    level: str = "hard"
    seed: int = SEED

    @property
    def look(self) -> SizeSettings:
        return SIZE_SETTINGS[self.size]

    @property
    def paddles(self) -> int:
        return PADDLES[self.level]

    def stroke(self, margin: int) -> Stroke:
        look = self.look
        return Stroke(length=look.length, thickness=look.thickness, margin=margin, continuity=look.continuity)


@dataclass(frozen=True, eq=False)
class Drawing:
    """n images (n, size, size) with labels (n,), and what is in them.

    margins: (n,), of each image's paddles. markers: (n, 2, 2), where an origin and a terminal tip are marked. marked:
    (n, 2), of which of the two snakes.
    """

    images: Bytes
    labels: Array
    margins: Array
    snakes: Snakes = field(repr=False)
    distractors: Snakes = field(repr=False)
    markers: Array
    marked: Array


def draw(scene: Scene, first: int, count: int) -> Drawing:
    """Images `first` to `first + count - 1` of a scene."""
    base = axis_seed(use="pathfinder", version=VERSION, size=scene.size, level=scene.level, seed=scene.seed)
    keys = key(np.array([base], dtype=np.uint64), np.arange(first, first + count))
    streams, rows = Streams(keys), np.arange(count)
    labels = streams.below(rows, 2)
    margins = np.array(scene.look.margins)[streams.below(rows, len(scene.look.margins))]
    origin = streams.below(rows, 2)
    marked = np.stack([origin, np.where(labels == 1, origin, 1 - origin)], axis=-1)
    distractor = scene.paddles // 3
    number = scene.look.distractor_paddles // distractor
    drawing = Drawing(
        images=np.zeros((count, scene.size, scene.size), dtype=np.uint8),
        labels=labels,
        margins=margins,
        snakes=_blank(count, 2, scene.paddles),
        distractors=_blank(count, number, distractor),
        markers=np.zeros((count, 2, 2), dtype=np.int64),
        marked=marked,
    )
    course = ContourSettings(size=scene.size, border=BORDER, distance=scene.look.distance, paddles=scene.paddles)
    for margin in np.unique(margins).tolist():
        rows = np.flatnonzero(margins == margin)
        strokes = paddles(scene.stroke(margin))
        grown = grow(course, strokes, keys[rows], scene.look.slots)
        distractors = grow_distractors(grown.ground, grown.streams, number, distractor, TRIES)
        for whole, part in ((drawing.snakes, grown.snakes), (drawing.distractors, distractors)):
            whole.kinds[rows], whole.starts[rows] = part.kinds, part.starts
        origins = grown.snakes.starts[np.arange(len(rows)), marked[rows, 0], 0]
        terminals = grown.snakes.starts[np.arange(len(rows)), marked[rows, 1], -1]
        drawing.markers[rows] = np.stack([origins, terminals], axis=1)
        drawing.images[rows] = rendered(scene, strokes, grown.snakes, distractors, drawing.markers[rows])
    return drawing


def rendered(scene: Scene, strokes: Paddles, snakes: Snakes, distractors: Snakes, markers: Array) -> Bytes:
    """The images (n, size, size) of these snakes: the brightest at each pixel of paddles and markers, stretched."""
    size, reach = scene.size, strokes.stroke.reach
    rim = reach + 2
    ink = np.zeros((len(markers), size + 2 * rim, size + 2 * rim), dtype=np.int32)
    within = np.arange(2 * reach + 1)
    for group, contrast in ((snakes, scene.look.target), (distractors, scene.look.distractor)):
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
            np.maximum(image, dot(size, y, x, scene.look.marker).astype(np.int32) * MARKER, out=image)
    return stretch_contrast(ink)


def dot(size: int, y: int, x: int, radius: float) -> Bytes:
    """A white disk about a pixel, drawn finely and shrunk, (size, size)."""
    shape = disk(radius * ANTIALIAS)
    reach, weights = len(shape) // 2, lanczos(size * ANTIALIAS, size)
    fine = np.zeros((size * ANTIALIAS + 2 * reach, size * ANTIALIAS + 2 * reach), dtype=np.uint8)
    fine[y * ANTIALIAS : y * ANTIALIAS + len(shape), x * ANTIALIAS : x * ANTIALIAS + len(shape)] = shape * 255
    fine = fine[reach : reach + size * ANTIALIAS, reach : reach + size * ANTIALIAS]
    # the window's three lobes, and a pixel more; what that does not reach stays black
    near = math.ceil(radius) + 4
    rows, columns = (slice(max(0, at - near), min(size, at + near + 1)) for at in (y, x))
    fine_rows, fine_columns = (slice(part.start * ANTIALIAS, part.stop * ANTIALIAS) for part in (rows, columns))
    image = np.zeros((size, size), dtype=np.uint8)
    image[rows, columns] = downsampled(
        fine[fine_rows, fine_columns], weights[rows, fine_rows], weights[columns, fine_columns]
    )
    return image


def stretch_contrast(ink: Array) -> Bytes:
    """Each image's darkest value to 0, its brightest to 255, halves up, (n, size, size) of bytes."""
    low = ink.min((1, 2), keepdims=True).astype(np.int64)
    span = ink.max((1, 2), keepdims=True) - low
    gray: Bytes = ((2 * 255 * (ink - low) + span) // np.maximum(2 * span, 1)).astype(np.uint8)
    return gray


def _blank(images: int, snakes: int, length: int) -> Snakes:
    return Snakes(
        kinds=np.full((images, snakes, length), -1), starts=np.zeros((images, snakes, length, 2), dtype=np.int64)
    )
