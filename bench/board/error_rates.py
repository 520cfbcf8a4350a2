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
    ("task", 3): ((2.3, 7.5), (1.5, 7.5), (2.0, 5.3)),
    ("task", 6): ((1.0, 6.5), (0.4, 6.4), (0.8, 7.8)),
    ("task", 10): ((0.3, 5.1), (0.2, 5.1), (0.0, 4.5)),
    ("failing", 3): ((1.7, 16.3), (1.6, 18.8), (2.2, 34.6)),
    ("failing", 6): ((1.1, 9.6), (1.0, 10.7), (0.6, 22.1)),
    ("failing", 10): ((1.2, 7.1), (0.9, 7.0), (0.5, 21.1)),
    ("suite", 3): ((0.3, 8.5), (4.6, 9.2), (8.4, 15.2)),
    ("suite", 6): ((0.2, 4.5), (1.1, 4.4), (1.5, 9.6)),
    ("suite", 10): ((0.1, 4.7), (0.2, 3.9), (0.2, 4.3)),
}


def simulated_errors(kind: Kind, seeds: int, variants: int) -> ErrorRates:
    """The rates of the simulated boards that have no more seeds, and no fewer variants where there are such.

    >>> simulated_errors("suite", 5, 8)[:2], simulated_errors("task", 20, 50)[:2]
    ((3, 11), (10, 33))
    """
    fewer = max((count for count in SEEDS if count <= seeds), default=SEEDS[0])
    more = min((count for count in VARIANTS if count >= variants), default=VARIANTS[-1])
    return ErrorRates(fewer, more, *SIMULATED[kind, fewer][VARIANTS.index(more)])
