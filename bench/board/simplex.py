"""Simplex: the weights that maps from scores to weights give two and three choices, computed for figures.

Each such map is the p on the simplex with the largest p·z + H(p), for an entropy H of its own (Blondel, Martins and
Niculae 2020, Learning with Fenchel-Young losses; the sign is a plus). For the entmax family H is Tsallis', which at
α = 1 is Shannon's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .report import FigureRow, SimplexFigure

Floats = npt.NDArray[np.float64]
Map = Callable[[Floats], Floats]
"""Weights of scores, both (rows, choices)."""

SCORES = ((1.0, 0.0, 0.0), (1.0, 0.8, 0.0), (1.0, 0.8, 0.6), (0.3, 1.0, 0.7), (0.0, 0.5, 1.0))
TEMPERATURES = tuple(float(t) for t in np.geomspace(20.0, 0.05, 61))
ALPHAS = (1.0, 1.25, 1.5, 2.0, 3.0)
GRID = 60
LEVELS = 8


def simplex_figure(maps: dict[str, Map], draws: int = 100) -> SimplexFigure:
    """Weights that `maps` give the scores above at all temperatures, random scores, and two choices."""
    random_scores = np.random.default_rng(0).normal(size=(draws, 3))
    random = {name: list(_points(name, random_scores, [1.0] * draws, map)) for name, map in maps.items()}
    trajectories = []
    for name, map in maps.items():
        for start, scores in enumerate(SCORES):
            rows = np.array(scores)[None] / np.array(TEMPERATURES)[:, None]
            trajectories += _points(name, rows, TEMPERATURES, map, start)
    return SimplexFigure(
        trajectories=tuple(trajectories),
        random=tuple(point for points in random.values() for point in points),
        choices=tuple(choice for name, map in maps.items() for choice in _choices(name, map)),
        contours=tuple(segment for alpha in ALPHAS for segment in contours(alpha)),
        surface=tuple(point for alpha in (1.0, 1.5, 2.0) for point in surface(alpha)),
        null_rows={name: draws - len(points) for name, points in random.items()},
    )


def entropy(weights: Floats, alpha: float) -> Floats:
    """Tsallis' entropy of each row: Σ (p - p^α) / (α (α - 1)); Shannon's, -Σ p log p, at α = 1.

    >>> entropy(np.array([[0.5, 0.5]]), 2.0).tolist(), entropy(np.array([[1.0, 0.0]]), 1.0).tolist()
    ([0.25], [0.0])
    """
    if alpha == 1:
        shannon: Floats = (
            -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1.0)), 0.0).sum(-1) + 0.0
        )
        return shannon
    tsallis: Floats = (weights - weights**alpha).sum(-1) / (alpha * (alpha - 1))
    return tsallis


def place(weights: Floats) -> tuple[Floats, Floats]:
    """The places of weights (rows, 3) that sum to one, in the triangle with corners (0, 0), (1, 0) and (1/2, √3/2)."""
    return weights[:, 1] + weights[:, 2] / 2, weights[:, 2] * math.sqrt(3) / 2


def contours(alpha: float) -> Iterator[FigureRow]:
    """Lines of equal entropy, found by marching over the small triangles of a grid."""
    corner, rows = _grid()
    values = entropy(corner, alpha)
    x, y = place(corner)
    top = float(values.max())
    for level in (top * (1 - (k / (LEVELS + 1)) ** 2) for k in range(1, LEVELS + 1)):
        for cell in rows:
            # an edge is crossed where its ends lie on both sides; a triangle has no such edge, or two
            ends = []
            for one, other in ((cell[0], cell[1]), (cell[1], cell[2]), (cell[2], cell[0])):
                low, high = values[one] - level, values[other] - level
                if (low < 0) != (high < 0):
                    share = low / (low - high)
                    ends.append((x[one] + share * (x[other] - x[one]), y[one] + share * (y[other] - y[one])))
            if len(ends) == 2:
                (x1, y1), (x2, y2) = ends
                yield {"alpha": alpha, "level": level, "x": float(x1), "y": float(y1), "x2": float(x2), "y2": float(y2)}


def surface(alpha: float, lines: int = 13, points: int = 40) -> Iterator[FigureRow]:
    """The entropy over the triangle as a net of lines in three directions, seen from 30 degrees above the plane."""
    number = 0
    for fixed in range(3):
        for value in np.linspace(0.0, 1.0, lines)[:-1]:
            rest = np.linspace(0.0, 1.0 - value, points)
            weights = np.empty((points, 3))
            weights[:, fixed] = value
            weights[:, (fixed + 1) % 3], weights[:, (fixed + 2) % 3] = rest, 1.0 - value - rest
            x, y = place(np.clip(weights, 0.0, 1.0))
            height = entropy(np.clip(weights, 0.0, 1.0), alpha)
            across, up = x + 0.35 * y, 0.5 * y * math.sin(math.pi / 6) + 0.7 * height
            for at in range(points):
                yield {"alpha": alpha, "line": number, "at": at, "x": float(across[at]), "y": float(up[at])}
            number += 1


def _grid() -> tuple[Floats, list[tuple[int, int, int]]]:
    """Weights of the grid's points (points, 3), and its small triangles as rows of three points."""
    index: dict[tuple[int, int], int] = {}
    weights: list[tuple[float, float, float]] = []
    for i in range(GRID + 1):
        for j in range(GRID + 1 - i):
            index[i, j] = len(weights)
            weights.append(((GRID - i - j) / GRID, i / GRID, j / GRID))
    cells = []
    for i, j in index:
        if i + j < GRID:
            cells.append((index[i, j], index[i + 1, j], index[i, j + 1]))
        if i + j < GRID - 1:
            cells.append((index[i + 1, j], index[i + 1, j + 1], index[i, j + 1]))
    return np.array(weights), cells


def _points(
    variant: str, scores: Floats, temperatures: Sequence[float], map: Map, start: int | None = None
) -> list[FigureRow]:
    weights = map(scores)
    totals = weights.sum(-1)
    x, y = place(weights / np.where(totals > 0, totals, 1.0)[:, None])
    return [
        {
            "variant": variant, "start": at if start is None else start, "temperature": temperatures[at],
            "x": float(x[at]), "y": float(y[at]), "first": float(weights[at, 0]), "second": float(weights[at, 1]),
            "third": float(weights[at, 2]), "total": float(totals[at]),
        }
        for at in range(len(scores))
        if totals[at] > 0
    ]  # fmt: skip


def _choices(variant: str, map: Map) -> Iterator[FigureRow]:
    leads = np.linspace(-3.0, 3.0, 121)
    weights = map(np.stack([leads, np.zeros_like(leads)], axis=1))
    for lead, row in zip(leads, weights, strict=True):
        yield {"variant": variant, "lead": float(lead), "weight": float(row[0])}
