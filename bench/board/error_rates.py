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
    ("task", 3): ((0.0, 6.9), (0.8, 6.2), (0.3, 5.6)),
    ("task", 6): ((0.0, 5.9), (0.1, 4.9), (0.1, 3.7)),
    ("task", 10): ((0.0, 4.7), (0.0, 4.1), (0.2, 4.7)),
    ("failing", 3): ((1.2, 7.1), (1.5, 8.1), (8.2, 19.2)),
    ("failing", 6): ((1.5, 5.9), (0.4, 5.6), (1.8, 5.5)),
    ("failing", 10): ((3.0, 6.0), (0.8, 4.3), (1.2, 10.6)),
    ("suite", 3): ((0.0, 3.3), (0.6, 5.5), (2.5, 6.8)),
    ("suite", 6): ((0.0, 3.5), (0.1, 4.9), (1.5, 10.9)),
    ("suite", 10): ((0.0, 3.7), (0.0, 4.0), (0.1, 6.9)),
}


def simulated_errors(kind: Kind, seeds: int, variants: int) -> ErrorRates:
    """The rates of the simulated boards that have no more seeds, and no fewer variants where there are such.

    >>> simulated_errors("suite", 5, 8)[:2], simulated_errors("task", 20, 50)[:2]
    ((3, 11), (10, 33))
    """
    fewer = max((count for count in SEEDS if count <= seeds), default=SEEDS[0])
    more = min((count for count in VARIANTS if count >= variants), default=VARIANTS[-1])
    return ErrorRates(fewer, more, *SIMULATED[kind, fewer][VARIANTS.index(more)])
