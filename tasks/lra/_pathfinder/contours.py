"""Contours: the two long snakes of a Pathfinder image, grown attempt by attempt until one attempt succeeds.

Hundreds of attempts fail for one that succeeds, so hundreds run side by side. The successful attempt with the lowest
number counts for an image, whichever ends first, so that the image depends on its key alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .paddles import DEGREES, Paddles
from .random_streams import Streams, Words, key
from .snakes import TRIES, Occupancy, SnakeEnds, Snakes, extend, free_starts, inside

Array = npt.NDArray[Any]
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class ContourSettings:
    """The geometry of two contours: `paddles` each, with starts `distance` pixels apart; all in pixels."""

    size: int
    border: int
    distance: int
    paddles: int


@dataclass(frozen=True, eq=False)
class GrownContours:
    """Both snakes of n images, the pixels that they occupy, and the streams of the attempts that succeeded."""

    snakes: Snakes
    occupancy: Occupancy
    streams: Streams


def grow(contour: ContourSettings, paddles: Paddles, keys: Words, slots: int) -> GrownContours:
    """Grow both snakes for each image's key, with `slots` attempts at a time."""
    attempts = _Attempts(contour, paddles, keys, slots)
    while attempts.advance():
        pass
    return attempts.result


class _Attempts:
    """Running attempts: slot i is attempt `number[i]` of image `image[i]`, with `done[i]` paddles; -1 = a free slot."""

    def __init__(self, contour: ContourSettings, paddles: Paddles, keys: Words, slots: int) -> None:
        self.contour, self.paddles, self.keys = contour, paddles, keys
        images, length = len(keys), contour.paddles
        self.occupancy = Occupancy(slots, contour.size, contour.border, paddles)
        self.streams = Streams(np.zeros(slots, dtype=np.uint64))
        self.image = np.full(slots, -1)
        self.number = np.zeros(slots, dtype=np.int64)
        self.done = np.zeros(slots, dtype=np.int64)
        self.kinds = np.zeros((slots, 2, length), dtype=np.int64)
        self.starts = np.zeros((slots, 2, length, 2), dtype=np.int64)
        self.pivots = np.zeros((slots, 2, 2), dtype=np.int64)
        self.begun = np.zeros(images, dtype=np.int64)
        self.best = np.full(images, NEVER)
        self.turn = 0
        snakes = Snakes(kinds=np.full((images, 2, length), -1), starts=np.zeros((images, 2, length, 2), dtype=np.int64))
        occupancy = Occupancy(images, contour.size, contour.border, paddles)
        self.result = GrownContours(snakes=snakes, occupancy=occupancy, streams=Streams(keys))

    def advance(self) -> bool:
        """Add one paddle to every running attempt. Returns False once every image has its snakes."""
        self._begin(np.flatnonzero(self.image < 0))
        rows = np.flatnonzero(self.image >= 0)
        if not len(rows):
            return bool((self.best == NEVER).any())
        # both snakes grow in turn, paddle by paddle, as in the original
        snake, at = self.done[rows] % 2, self.done[rows] // 2
        ends = SnakeEnds(kinds=self.kinds[rows, snake, at], pivots=self.pivots[rows, snake])
        found, kinds, heads, pivots = extend(self.occupancy, self.streams, rows, ends)
        # a snake that cannot grow ends its attempt and frees the slot
        lost = np.ones(len(rows), dtype=bool)
        lost[found] = False
        self.image[rows[lost]] = -1
        rows, snake, at = rows[found], snake[found], at[found]
        self.occupancy.occupy(rows, self.kinds[rows, snake, at], self.starts[rows, snake, at])
        self.kinds[rows, snake, at + 1], self.starts[rows, snake, at + 1] = kinds, heads
        self.pivots[rows, snake] = pivots
        self.done[rows] += 1
        for row in rows[self.done[rows] == 2 * (self.contour.paddles - 1)].tolist():
            self._succeed(row)
        return True

    def _begin(self, free: Array) -> None:
        """Start attempts in these free slots, in turn for the images without a successful one."""
        open_images = np.flatnonzero(self.best == NEVER)
        if not len(open_images) or not len(free):
            return
        # round robin: no image waits for another, and few slots idle at the end
        order = np.arange(len(free))
        image = open_images[(self.turn + order) % len(open_images)]
        number = self.begun[image] + order // len(open_images)
        self.turn = (self.turn + len(free)) % len(open_images)
        self.begun += np.bincount(image, minlength=len(self.begun))
        # the stream of an attempt follows from the image's key and the attempt's number, and not from the slot
        self.streams.restart(free, key(self.keys[image], number))
        self.occupancy.clear(free)
        self.number[free], self.done[free] = number, 0
        kinds, starts, fits = first_paddles(self.contour, self.paddles, self.streams, free)
        self.kinds[free, :, 0], self.starts[free, :, 0] = kinds, starts
        self.pivots[free] = starts + self.paddles.pivots[kinds]
        self.image[free] = np.where(fits, image, -1)

    def _succeed(self, row: int) -> None:
        image = int(self.image[row])
        self.image[row] = -1
        # a later attempt ended earlier; only a lower number may replace it
        if self.number[row] > self.best[image]:
            return
        self.best[image] = self.number[row]
        # as in the original, only the second snake's last paddle is marked as occupied
        one = np.array([row])
        self.occupancy.occupy(one, self.kinds[one, 1, -1], self.starts[one, 1, -1])
        result = self.result
        result.snakes.kinds[image], result.snakes.starts[image] = self.kinds[row], self.starts[row]
        result.occupancy.mask[image], result.occupancy.wide[image] = self.occupancy.mask[row], self.occupancy.wide[row]
        result.streams.keys[image], result.streams.counts[image] = self.streams.keys[row], self.streams.counts[row]
        # attempts with higher numbers can no longer count
        self.image[(self.image == image) & (self.number > self.best[image])] = -1


def first_paddles(
    contour: ContourSettings, paddles: Paddles, streams: Streams, rows: Array
) -> tuple[Array, Array, Array]:
    """Kinds (n, 2) and starts (n, 2, 2) of both snakes' first paddles, and whether they fit, (n,).

    In the original, a direction without a place for the first snake fails at once. Here such directions are not drawn,
    which gives the same distribution.
    """
    degrees, counts, places = _places(contour, paddles)
    kinds = np.zeros((len(rows), 2), dtype=np.int64)
    starts = np.zeros((len(rows), 2, 2), dtype=np.int64)
    drawn = streams.below(rows, len(degrees))
    place = places[drawn, streams.below(rows, counts[drawn])]
    kinds[:, 0] = degrees[drawn]
    starts[:, 0] = np.stack(np.divmod(place, contour.size), axis=-1)
    fits = np.zeros(len(rows), dtype=bool)
    for _ in range(TRIES):
        trying = np.flatnonzero(~fits)
        degree = streams.below(rows[trying], DEGREES)
        start = starts[trying, 0] + _apart(contour.distance)[streams.below(rows[trying], DEGREES)]
        kinds[trying, 1], starts[trying, 1] = degree, start
        fits[trying] = inside(start + paddles.heads[degree], contour.size) & inside(
            start + paddles.pivots[degree], contour.size
        )
    return kinds, starts, fits


@lru_cache(maxsize=8)
def _places(contour: ContourSettings, paddles: Paddles) -> tuple[Array, Array, Array]:
    """Degrees (n,) with a place for a first paddle, numbers of places (n,), the places as flat indices (n, most)."""
    occupied = np.ones((contour.size, contour.size), dtype=bool)
    far = slice(2 * contour.distance, contour.size - 2 * contour.distance)
    occupied[far, far] = False
    found = {degree: free_starts(paddles, occupied, degree) for degree in range(DEGREES)}
    found = {degree: places for degree, places in found.items() if len(places)}
    counts = np.array([len(places) for places in found.values()])
    table = np.zeros((len(found), counts.max()), dtype=np.int64)
    for row, places in zip(table, found.values(), strict=True):
        row[: len(places)] = places
    return np.array(list(found)), counts, table


@lru_cache(maxsize=8)
def _apart(distance: int) -> Array:
    """Rounded (y, x) steps of that length in each whole degree, (360, 2)."""
    angles = np.deg2rad(np.arange(DEGREES))
    exact = distance * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    # halves to even, as the original rounds; what is a half but for rounding is one
    return np.rint(np.rint(exact * 1e6) / 1e6).astype(np.int64)
