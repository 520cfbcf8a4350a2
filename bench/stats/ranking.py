"""Ranking: intervals of ranks that the data leave open, with tie groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .intervals import LEVEL, Estimate

Advantage = Callable[[str, str], Estimate]
"""The advantage of the first over the second; negative where it is worse."""

Winner = Callable[[str, str], int]
"""1 where the first is proven better than the second, -1 where the second is, 0 where neither is."""


@dataclass(frozen=True, slots=True)
class RankInterval:
    """The places that a variant may hold. Variants with the same places form one tie group."""

    name: str
    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def rank_intervals(names: Sequence[str], advantage: Advantage, floor: float = 0.0) -> list[RankInterval]:
    """Rank intervals by differences whose p-value, times the number of pairs of `names`, is under 5 %.

    And which exceed `floor`.

    >>> points = {"a": 1.0, "b": 5.0, "c": 1.2}
    >>> exact = lambda x, y: Estimate(points[x] - points[y])
    >>> [f"{s.name} {s}" for s in rank_intervals(["a", "b", "c"], exact, floor=0.5)]
    ['b 1', 'a 2-3', 'c 2-3']
    """
    pairs = max(len(names) * (len(names) - 1) // 2, 1)

    def winner(one: str, other: str) -> int:
        difference = advantage(one, other)
        is_proven = abs(difference.value) > floor and difference_is_proven(difference, pairs)
        return (1 if difference.value > 0 else -1) if is_proven else 0

    return ranked_by(names, winner)


def ranked_by(names: Sequence[str], winner: Winner) -> list[RankInterval]:
    """Rank intervals: one place below all that are proven better, and above all that are proven worse.

    Proven: by `winner`, or it follows from two that are (A before B before C). Every pair is judged by itself: Holm's
    step-down would let one pair's verdict hang on the others', and then a variant that gets worse can win a place.
    Pairs may rest on different seeds: should A beat B, B beat C and C beat A, none of these counts. The order is by
    interval, and inside a tie alphabetical.

    >>> proven = {"ab": 1, "ac": -1, "ad": 1, "bc": 1}  # a before b, b before c, c before a; and a before d
    >>> [f"{s.name} {s}" for s in ranked_by(["a", "b", "c", "d"], lambda x, y: proven.get(x + y, 0))]
    ['a 1-3', 'b 1-3', 'c 1-3', 'd 4']
    """
    better: dict[str, set[str]] = {name: set() for name in names}
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            if proven := winner(one, other):
                first, second = (one, other) if proven > 0 else (other, one)
                better[second].add(first)
    reached = {name: _closure(name, better) for name in names}
    # whoever is ahead of itself stands in a cycle with all that are ahead of it and behind it
    ahead = {name: {other for other in others if name not in reached[other]} for name, others in reached.items()}
    found = [
        RankInterval(name, 1 + len(ahead[name]), len(names) - sum(name in others for others in ahead.values()))
        for name in names
    ]
    return sorted(found, key=lambda s: (s.first, s.last, s.name))


def difference_is_proven(difference: Estimate, pairs: int = 1) -> bool:
    """True if its interval leaves zero out, corrected for that many pairs.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> difference = Estimate(2.2, (NoiseSource(1.0),))
    >>> difference_is_proven(difference), difference_is_proven(difference, pairs=3)
    (True, False)
    """
    return difference.half_width(1 - (1 - LEVEL) / pairs) < abs(difference.value)


def _closure(name: str, better: dict[str, set[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = better[waiting.pop()] - found
        found |= new
        waiting += new
    return frozenset(found)
