"""Error rates: how often simulated boards of some size err, for the note below a board of that size."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["task", "failing", "suite"]
"""A board of one task on which every training learned, or some failed; or a suite's."""


class ErrorRates(NamedTuple):
    """Shares of simulated boards, in %: with a false order in their ranks, and with an interval off the truth."""

    seeds: int
    variants: int
    orders: float
    intervals: float


SEEDS, VARIANTS = (3, 6, 10), (6, 11, 33)

# the last table of docs/scoring_simulations.md, which tools/simulate_scoring.py makes: by kind and seeds, one for each
# number of variants
SIMULATED: dict[tuple[Kind, int], tuple[tuple[float, float], ...]] = {
    ("task", 3): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("task", 6): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("task", 10): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("failing", 3): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("failing", 6): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("failing", 10): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("suite", 3): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("suite", 6): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("suite", 10): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
}


def simulated_errors(kind: Kind, seeds: int, variants: int) -> ErrorRates:
    """The rates of the simulated boards that have no more seeds, and no fewer variants where there are such.

    >>> simulated_errors("suite", 5, 8)[:2], simulated_errors("task", 20, 50)[:2]
    ((3, 11), (10, 33))
    """
    fewer = max((count for count in SEEDS if count <= seeds), default=SEEDS[0])
    more = min((count for count in VARIANTS if count >= variants), default=VARIANTS[-1])
    return ErrorRates(fewer, more, *SIMULATED[kind, fewer][VARIANTS.index(more)])
