"""Snakes: chains of paddles that wind through free pixels and keep out of each other's margins.

The procedure comes from Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent
units", as their code of 2019 runs it. Many images grow at once, a paddle at a time in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .paddles import DEGREES, OCCUPIED, UNIT, Bytes, Paddles
from .random_streams import Streams

TRIES = 3
"""Draws of a paddle before its snake fails."""

MIN_WEIGHT_SUM = UNIT * 255 // 10_000
"""A sum of weights below it, 1e-4 in the original, is a dead end."""

Array = npt.NDArray[Any]


class Occupancy:
    """Occupied pixels of many images: `mask` (slots, height, width), and `wide`, dilated by the margin once more.

    Both have a rim around the image, so that no patch needs clipping. The rim is free in `mask` and occupied in `wide`,
    where no paddle may end. Inside, `border` pixels at each edge are occupied from the start.
    """

    def __init__(self, slots: int, size: int, border: int, paddles: Paddles) -> None:
        stroke = paddles.stroke
        self.size, self.paddles = size, paddles
        self.rim = max(stroke.reach + stroke.margin, stroke.length + 2 * stroke.margin + 2)
        edge, rim = border + stroke.margin, self.rim
        self.fresh_mask = np.zeros((size + 2 * rim, size + 2 * rim), dtype=np.uint8)
        self.fresh_mask[rim:-rim, rim:-rim] = 255
        self.fresh_mask[rim + border : -rim - border, rim + border : -rim - border] = 0
        self.fresh_wide = np.full_like(self.fresh_mask, 255)
        self.fresh_wide[rim + edge : -rim - edge, rim + edge : -rim - edge] = 0
        self.mask = np.tile(self.fresh_mask, (slots, 1, 1))
        self.wide = np.tile(self.fresh_wide, (slots, 1, 1))
        # every window as a view: reading and writing patches of many images is one fancy index each
        self._patches = _windows(self.mask, 2 * stroke.reach + 1)
        self._wide_patches = _windows(self.wide, 2 * (stroke.reach + stroke.margin) + 1)

    def clear(self, rows: Array) -> None:
        """Free all pixels of these images but the border."""
        self.mask[rows] = self.fresh_mask
        self.wide[rows] = self.fresh_wide

    def occupy(self, rows: Array, kinds: Array, starts: Array) -> None:
        """Occupy the pixels of one paddle on each of these images."""
        corner = starts + self.rim - self.paddles.stroke.reach
        at = (rows, corner[:, 0], corner[:, 1])
        self._patches[at] = np.maximum(self._patches[at], self.paddles.masks[kinds])
        margin = self.paddles.stroke.margin
        at = (rows, corner[:, 0] - margin, corner[:, 1] - margin)
        self._wide_patches[at] = np.maximum(self._wide_patches[at], self.paddles.wide[kinds])

    def collides(self, rows: Array, candidates: Array, heads: Array) -> npt.NDArray[np.bool_]:
        """True if a paddle that ends at `heads` would overlap occupied pixels, (n,)."""
        corner = heads + self.rim - self.paddles.stroke.reach
        hits: npt.NDArray[np.bool_] = (
            self._patches[rows, corner[:, 0], corner[:, 1]] > self.paddles.limits[candidates]
        ).any((1, 2))
        return hits

    def inner(self, row: int) -> Bytes:
        """The mask of one image, without the rim: a view."""
        return self.mask[row, self.rim : -self.rim, self.rim : -self.rim]


@dataclass(frozen=True, eq=False)
class SnakeEnds:
    """The last paddles of snakes. kinds, (n,): their directions; pivots, (n, 2): where they turned."""

    kinds: Array
    pivots: Array


def extend(occupancy: Occupancy, streams: Streams, rows: Array, ends: SnakeEnds) -> tuple[Array, Array, Array, Array]:
    """One more paddle for one snake on each of these images.

    Returns `found`, indices into rows of the snakes that grew, and the new kind, head and pivot of each of these. The
    caller must then occupy the paddle before the new one: until then the snake may touch itself there.
    """
    paddles = occupancy.paddles
    pivots = ends.pivots + paddles.ahead[ends.kinds]
    # the next paddle can end on a few pixels of a circle; each weighs by the turn and by the room that is left there
    side = occupancy.wide.shape[1]
    cells = (rows * side + pivots[:, 0] + occupancy.rim) * side + pivots[:, 1] + occupancy.rim
    around = paddles.offsets[:, 0] * side + paddles.offsets[:, 1]
    room = 255 - occupancy.wide.reshape(-1).take(cells[:, None] + around)
    sums = (paddles.weights[ends.kinds] * room).cumsum(1)
    chosen = np.full(len(rows), -1)
    trying = np.flatnonzero(sums[:, -1] >= MIN_WEIGHT_SUM)
    for _ in range(TRIES):
        if not len(trying):
            break
        # draw a candidate with probability proportional to its weight
        drawn = streams.below(rows[trying], sums[trying, -1])
        candidates = (sums[trying] <= drawn[:, None]).sum(1)
        hit = occupancy.collides(rows[trying], candidates, pivots[trying] + paddles.offsets[candidates])
        chosen[trying[~hit]] = candidates[~hit]
        trying = trying[hit]
    found = np.flatnonzero(chosen >= 0)
    candidates = chosen[found]
    return found, DEGREES + candidates, pivots[found] + paddles.offsets[candidates], pivots[found]


def free_starts(paddles: Paddles, occupied: npt.NDArray[np.bool_], degree: int) -> Array:
    """Starts of a first paddle of that direction whose footprint is free, as flat indices into the image.

    Pixels outside of the image count as free.
    """
    if not len(paddles.footprints[degree]):
        return np.empty(0, dtype=np.int64)
    reach = paddles.stroke.reach + 1
    around = np.pad(occupied, reach)
    size = len(occupied)
    blocked: npt.NDArray[np.bool_] = np.zeros(occupied.shape, dtype=bool)
    for y, x in paddles.footprints[degree].tolist():
        np.logical_or(blocked, around[reach + y : reach + y + size, reach + x : reach + x + size], out=blocked)
    return np.flatnonzero(~blocked)


def inside(points: Array, size: int) -> npt.NDArray[np.bool_]:
    """True for each of these points (…, 2) that lies in the image."""
    return np.asarray(((points >= 0) & (points < size)).all(-1))


@dataclass(frozen=True, eq=False)
class Snakes:
    """Paddles of the snakes of n images. kinds: (n, snakes, paddles), -1 = none; starts: (n, snakes, paddles, 2)."""

    kinds: Array
    starts: Array


def grow_distractors(occupancy: Occupancy, streams: Streams, snakes: int, length: int, tries: int) -> Snakes:
    """Up to `snakes` distractors of `length` paddles on every image. Each is given up after `tries` failures."""
    slots = len(occupancy.mask)
    kinds = np.full((slots, snakes, length), -1)
    starts = np.zeros((slots, snakes, length, 2), dtype=np.int64)
    for snake in range(snakes):
        wanting = np.arange(slots)
        for _ in range(tries):
            grown, its_kinds, its_starts = _distractors(occupancy, streams, wanting, length)
            kinds[grown, snake], starts[grown, snake] = its_kinds, its_starts
            wanting = np.setdiff1d(wanting, grown)
    return Snakes(kinds=kinds, starts=starts)


def _distractors(occupancy: Occupancy, streams: Streams, rows: Array, length: int) -> tuple[Array, Array, Array]:
    """One snake on each of the images `rows`. Returns the images where it grew, kinds and starts of its paddles."""
    seeded = [(row, seed) for row in rows.tolist() if (seed := _seed(occupancy, streams, row)) is not None]
    rows = np.array([row for row, _ in seeded], dtype=np.int64)
    kinds = np.full((len(rows), length), -1)
    starts = np.zeros((len(rows), length, 2), dtype=np.int64)
    kinds[:, 0] = [degree for _, (degree, _) in seeded]
    starts[:, 0] = np.array([start for _, (_, start) in seeded]).reshape(-1, 2)
    pivots = starts[:, 0] + occupancy.paddles.pivots[kinds[:, 0]]
    # a snake that fails on its way must leave no trace
    before, before_wide = occupancy.mask[rows], occupancy.wide[rows]
    growing = np.arange(len(rows))
    for at in range(1, length):
        ends = SnakeEnds(kinds=kinds[growing, at - 1], pivots=pivots[growing])
        found, new_kinds, heads, new_pivots = extend(occupancy, streams, rows[growing], ends)
        growing = growing[found]
        occupancy.occupy(rows[growing], kinds[growing, at - 1], starts[growing, at - 1])
        kinds[growing, at], starts[growing, at], pivots[growing] = new_kinds, heads, new_pivots
    occupancy.occupy(rows[growing], kinds[growing, -1], starts[growing, -1])
    failed = np.setdiff1d(np.arange(len(rows)), growing)
    occupancy.mask[rows[failed]], occupancy.wide[rows[failed]] = before[failed], before_wide[failed]
    return rows[growing], kinds[growing], starts[growing]


def _seed(occupancy: Occupancy, streams: Streams, row: int) -> tuple[int, tuple[int, int]] | None:
    """Direction and start of a distractor's first paddle on one image; None if there is no place."""
    size, paddles, one = occupancy.size, occupancy.paddles, np.array([row])
    occupied = occupancy.inner(row) > OCCUPIED
    # the original gives up when less than 1 % of the image is free
    if 100 * np.count_nonzero(~occupied) < size * size:
        return None
    occupied[[0, -1]] = occupied[:, [0, -1]] = True
    for _ in range(TRIES):
        degree = int(streams.below(one, DEGREES)[0])
        free = free_starts(paddles, occupied, degree)
        if not len(free):
            return None
        start = divmod(int(free[streams.below(one, len(free))[0]]), size)
        if inside(np.array([start + paddles.heads[degree], start + paddles.pivots[degree]]), size).all():
            return degree, start
    return None


def _windows(canvas: Bytes, side: int) -> Bytes:
    """Every square window of a canvas (slots, height, width) as a writable view (slots, y, x, side, side)."""
    slots, height, width = canvas.shape
    shape = (slots, height - side + 1, width - side + 1, side, side)
    return np.lib.stride_tricks.as_strided(canvas, shape, (*canvas.strides, *canvas.strides[1:]))
