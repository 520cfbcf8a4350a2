"""MaxLength: the longest sequence that fits, by doubling and then bisecting what was tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FIRST = 256
LAST = 2**20
GRAIN = 64
"""Lengths that are tried are multiples of this, which every block size divides or is divided by."""

PRECISION = 1 / 16

Verdict = Literal["fits", "memory", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLength:
    """`length`: the longest that fitted, 0 for none. `stopped`: the reason why the next longer one failed.

    `last`: nothing failed up to the longest length that is tried.
    """

    length: int
    stopped: Literal["memory", "time", "last"]


def search_max_length(attempt: Callable[[int], Verdict], first: int = FIRST, last: int = LAST) -> MaxLength:
    """The longest length that fits, to a sixteenth of itself, if what fits at one length fits at every shorter one.

    Where time ends the search it is the last of doubled lengths.

    >>> search_max_length(lambda length: "fits" if length <= 5000 else "memory")
    MaxLength(length=4864, stopped='memory')
    """
    fits, stopped, length = 0, "last", first
    fails = 0
    while not fails and length <= last:
        verdict = attempt(length)
        if verdict == "fits":
            fits, length = length, 2 * length
        else:
            fails, stopped = length, verdict
    # where time ends the search, trying lengths between would take that time again and again
    while stopped == "memory" and fits and fails - fits > max(GRAIN, PRECISION * fits):
        # Rounded down to the grain; nothing is left to try where that falls on an end.
        middle = (fits + fails) // 2 // GRAIN * GRAIN
        if not fits < middle < fails:
            break
        verdict = attempt(middle)
        if verdict == "fits":
            fits = middle
        else:
            fails, stopped = middle, verdict
    return MaxLength(length=fits, stopped=stopped)  # type: ignore[arg-type]
