"""Paddles: the short strokes of Pathfinder's snakes, rendered once for every possible direction.

Everything that depends on a paddle's direction alone is a table of integers, so that growing a snake needs look-ups
only. Coordinates are (y, x). A kind is a direction: 0 to 359 are the whole degrees in which a snake can start, from
-180 up; the others are the directions to the pixels where a next paddle can end, which are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

ANTIALIAS = 2
DEGREES = 360
UNIT = 1 << 16
"""The weight 1 in integers. Weight × room of 255 × candidates stays below 2³², the bound of `Streams.below`."""

OCCUPIED = 76
"""The threshold at the start of a snake: mask values above 0.3 of 255 count as occupied."""

COLLISION = 458
"""Two masks collide where their sum is above 1.8 of 255."""

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """The shape of a paddle in pixels: `length`, `thickness`, and the free `margin` around it.

    `continuity`: how strongly a snake prefers to go straight on.
    """

    length: int
    thickness: float
    margin: int
    continuity: float

    @property
    def reach(self) -> int:
        """Half the side of a paddle's patch. The paddle starts at the centre of its patch."""
        return self.length + math.ceil(self.thickness) + self.margin


@dataclass(frozen=True, eq=False)
class Paddles:
    """Tables over kinds (kinds = 360 + candidates). `side` = 2 × reach + 1.

    ink, masks: (kinds, side, side), as drawn, and dilated by the margin. wide: masks dilated by the margin once more,
    (kinds, side + 2 margin, …). limits: (candidates, side, side), mask values above which a paddle collides. ahead:
    (kinds, 2), from a paddle's pivot to the next pivot. offsets: (candidates, 2), from a pivot to the possible ends of
    the next paddle. weights: (kinds, candidates), preference for each turn. heads, pivots: (360, 2), from the start of
    a first paddle. footprints: for each degree, the pixels relative to its start that must be free for a first paddle.
    """

    stroke: Stroke
    ink: Bytes
    masks: Bytes
    wide: Bytes
    limits: Bytes
    ahead: Array
    offsets: Array
    weights: Array
    heads: Array
    pivots: Array
    footprints: tuple[Array, ...]


@lru_cache(maxsize=8)
def paddles(stroke: Stroke) -> Paddles:
    """All tables of a stroke."""
    length, margin = stroke.length, stroke.margin
    offsets = circle(length + margin)
    degrees = np.deg2rad(np.arange(-180, 180))
    towards = np.arctan2(offsets[:, 0], offsets[:, 1])
    # a first paddle is drawn from its tail forwards, a later one from its head backwards
    drawn = [rendered(stroke, angle) for angle in [*degrees, *(towards + np.pi)]]
    ink, masks = np.stack([line for line, _ in drawn]), np.stack([mask for _, mask in drawn])
    angles = np.concatenate([degrees, towards])
    turn = np.abs(angles[:, None] - towards)
    # the angle between two directions is at most half a turn; beyond a right angle the weight is 0
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * stroke.continuity, np.pi / 2)
    heads = displacement(length, degrees)
    return Paddles(
        stroke=stroke,
        ink=ink,
        masks=masks,
        wide=np.stack([dilated(np.pad(mask, margin), disk(margin)) for mask in masks]),
        limits=np.minimum(COLLISION - masks[DEGREES:].astype(np.int64), 255).astype(np.uint8),
        ahead=displacement(length + 2 * margin, angles),
        offsets=offsets,
        weights=np.rint(np.cos(turn) ** 2 * UNIT).astype(np.int64),
        heads=heads,
        pivots=heads + displacement(length + margin, degrees + np.pi),
        footprints=tuple(footprint(mask, length + margin) for mask in masks[:DEGREES]),
    )


def displacement(distance: float, angles: Array) -> Array:
    """Whole (y, x) steps of a distance in these directions, (angles, 2), rounded up as in the original."""
    exact = distance * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    # a whole number stays one in spite of rounding errors
    return np.ceil(exact - 1e-9).astype(np.int64)


def circle(radius: int) -> Array:
    """The distinct pixels on a circle about the origin in steps of one pixel of arc, (pixels, 2), sorted."""
    angles = np.arange(0, 2 * np.pi, 1 / radius)
    exact = radius * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return np.unique(np.floor(exact + 1e-9).astype(np.int64), axis=0)


def rendered(stroke: Stroke, angle: float) -> tuple[Bytes, Bytes]:
    """The ink and the mask of a paddle from the patch's centre in a direction, (side, side), 0 to 255."""
    # drawn at twice the size and shrunk, which smooths the edges as in the original
    center = stroke.reach * ANTIALIAS
    target = displacement(stroke.length * ANTIALIAS, np.array([angle]))[0]
    blown = line(2 * center + 1, center, target, round(stroke.thickness * ANTIALIAS))
    shrink = lanczos(2 * center + 1, 2 * stroke.reach + 1)
    mask = dilated(blown, disk(stroke.margin * ANTIALIAS))
    return downsampled(blown, shrink, shrink), downsampled(mask, shrink, shrink)


def line(side: int, center: int, target: Array, width: int) -> Bytes:
    """A white line on black from the centre to centre + target (y, x), both ends included, (side, side).

    A line of width 1 has one pixel for each step along its longer axis. A wider line has every pixel whose centre lies
    in the rectangle around it; of its two long edges, the one further down or right belongs to it.
    """
    blown = np.zeros((side, side), dtype=np.uint8)
    dy, dx = (int(step) for step in target)
    if width == 1:
        steps = max(abs(dy), abs(dx))
        for step in range(steps + 1):
            # round half away from the start, in integers, so that every machine draws the same line
            y = center + (2 * abs(dy) * step + steps) // (2 * steps) * (1 if dy >= 0 else -1)
            x = center + (2 * abs(dx) * step + steps) // (2 * steps) * (1 if dx >= 0 else -1)
            blown[y, x] = 255
        return blown
    y, x = np.mgrid[-center : side - center, -center : side - center]
    along, across = x * dx + y * dy, (x * dy - y * dx) * (-1 if (dx, -dy) > (0, 0) else 1)
    squared = dx * dx + dy * dy
    edge = 4 * across**2 - width**2 * squared
    blown[(along >= 0) & (along <= squared) & ((edge < 0) | ((edge == 0) & (across > 0)))] = 255
    return blown


def disk(radius: float) -> Bytes:
    """A disk as a square of bytes: 1 where y² + x² ≤ radius², else 0."""
    reach = math.floor(radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    shape: Bytes = (x**2 + y**2 <= radius**2).astype(np.uint8)
    return shape


def dilated(image: Bytes, element: Bytes) -> Bytes:
    """Dilation: the largest value under the element around each pixel. Pixels outside count as 0."""
    reach = len(element) // 2
    around = np.pad(image, reach)
    height, width = image.shape
    result = np.zeros_like(image)
    for y, x in np.argwhere(element):
        np.maximum(result, around[y : y + height, x : x + width], out=result)
    return result


@lru_cache(maxsize=16)
def lanczos(size: int, target: int) -> Weights:
    """Weights (target, size) that shrink `size` pixels to `target` with a Lanczos window of three lobes.

    Turkowski 1990, "Filters for common resampling tasks". The window is stretched by size / target against aliasing.
    """
    scale = size / target
    centers = (np.arange(target) + 0.5) * scale
    distance = (np.arange(size) + 0.5 - centers[:, None]) / scale
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    rows: Weights = weights / weights.sum(1, keepdims=True)
    return rows


def downsampled(image: Bytes, down: Weights, across: Weights) -> Bytes:
    """An image shrunk along rows, then columns, and rounded to bytes after each, as image libraries do.

    down: (target height, height), across: (target width, width), from `lanczos`.
    """
    return _bytes(down @ _bytes(image @ across.T))


def _bytes(values: Weights) -> Bytes:
    # a little above a half, so that the order of a sum does not decide the rounding
    rounded: Bytes = np.floor(values.clip(0, 255) + 0.5 + 1e-9).astype(np.uint8)
    return rounded


def footprint(mask: Bytes, extent: int) -> Array:
    """Pixels (n, 2) relative to a first paddle's start that must be free: those wholly inside its mask.

    Two quirks of the original are part of the data. It looks one pixel down and right of the start, and no further
    than `extent`. And it takes an image for full in any direction whose footprint lies wholly outside at some pixel of
    the image, since its dilation is negative there. On 32 × 32 that leaves 31 degrees of 360, which decides how many
    attempts fail and how many distractors an image gets.
    """
    reach = len(mask) // 2
    inside = np.argwhere(mask == 255) - reach + 1
    inside = inside[(inside >= -extent).all(1) & (inside <= extent).all(1)]
    # a footprint that lies wholly outside at some pixel does so at a corner
    escapes = [((inside * corner) > 0).any(1).all() for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    return inside[:0] if any(escapes) else inside
