"""Triangle: the points and lines that show what maps from scores to weights do to two and three choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrianglePoint:
    """Weights of three choices in the triangle: choice 1 is the left corner, 2 the right, 3 the top.

    `total`: what the weights sum to; where it is not one they are drawn as shares of it. `start`: number of the scores.
    """

    variant: str
    start: int
    temperature: float
    x: float
    y: float
    first: float
    second: float
    third: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Weight of the first of two choices whose score is ahead by `lead`."""

    variant: str
    lead: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a contour line of Tsallis' entropy, in the triangle."""

    alpha: float
    level: float
    x: float
    y: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A point of one line of the entropy surface, seen from aside: `line` numbers the lines, `at` their points."""

    alpha: float
    line: int
    at: int
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Triangle:
    """All that is drawn. `null_rows`: by variant, how many of the random scores got no weight at all."""

    trajectories: tuple[TrianglePoint, ...]
    random: tuple[TrianglePoint, ...]
    choices: tuple[Choice, ...]
    contours: tuple[Segment, ...]
    surface: tuple[Thread, ...]
    null_rows: dict[str, int]
