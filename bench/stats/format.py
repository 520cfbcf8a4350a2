"""Numbers as boards print them: ratios, shares, counts, sizes and durations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ..core.metrics import Interval

LONGEST_LIST = 300
"""Characters of what there is, in an error about what there is not."""


def speed(ratio: Interval) -> str:
    """A cost ratio to the reference, in the direction that reads well; at the cap it is a bound.

    >>> speed(Interval(0.5, 0.45, 0.55)), speed(Interval(1.02, 0.99, 1.05)), speed(point(0.25)), speed(point(64.0))
    ('2.00× faster (1.82–2.22)', '1.02× slower (0.99–1.05)', '4.00× faster', '≥ 64× slower')
    """
    from .scoring import CAP  # late, since commands that only count need no numpy

    return _direction(ratio, "faster", "slower") if round(ratio.value, 9) < CAP else f"≥ {CAP:.0f}× slower"


def memory(times: float) -> str:
    """
    >>> memory(0.25)
    '4.00× less'
    """
    return _direction(point(times), "less", "more")


def point(value: float) -> Interval:
    """A value without an interval."""
    return Interval(value, value, value)


def percent(share: float) -> str:
    """
    >>> percent(0.004), percent(0.0), percent(0.98), percent(1.844)
    ('0.4 %', '0 %', '98 %', '184 %')
    """
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 < value < 100:
        return "> 99.9 %"
    return f"{value:.0f} %" if value in (0, 100) or 9.95 <= value <= 99 or value > 100 else f"{value:.1f} %"


def count(number: float) -> str:
    """
    >>> count(364_290), count(1_200_000), count(930)
    ('364k', '1.20M', '930')
    """
    if number >= 1e6:
        return f"{number / 1e6:.2f}M"
    return f"{number / 1e3:.0f}k" if number >= 1e4 else f"{number:,.0f}"


def size(count_of_bytes: float) -> str:
    """
    >>> size(123_456_789)
    '118 MiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if count_of_bytes < 1024:
            return f"{count_of_bytes:.0f} {unit}"
        count_of_bytes /= 1024
    return f"{count_of_bytes:.1f} GiB"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0412), duration(2.5)
    ('41.2 ms', '2.50 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if scale > 1 else f"{seconds:.2f} s"
    return f"{seconds * 1e6:.3g} µs"


def joules(energy: float) -> str:
    """
    >>> joules(0.0412), joules(2.5), joules(312.0)
    ('41.2 mJ', '2.5 J', '312 J')
    """
    return f"{energy:.3g} J" if energy >= 1 else f"{energy * 1e3:.3g} mJ"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "error"), counted(1200, "Record")
    ('1 error', '1,200 Records')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_a_line(names: Iterable[str]) -> str:
    """Sorted, for an error about what is not there; of many, those that fit into a line.

    >>> in_a_line({"rela", "dot"})
    'dot, rela'
    """
    return textwrap.shorten(", ".join(sorted(names)), LONGEST_LIST, placeholder=" …")


def listed(items: list[str] | tuple[str, ...]) -> str:
    """
    >>> listed(["0", "1", "2"])
    '0, 1 and 2'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def _direction(ratio: Interval, low_word: str, high_word: str) -> str:
    value, low, high, word = ratio.value, ratio.low, ratio.high, high_word
    if value < 1:
        value, low, high, word = 1 / value, 1 / high, 1 / low, low_word
    shown, first, last = (_times(end, value) for end in (value, low, high))
    ends = f" ({first}–{last})" if first != last else ""
    return f"{shown}× {word}{ends}" if float(shown) != 1 else f"{shown}×{ends}"


def _times(number: float, like: float) -> str:
    return f"{number:.{2 if like < 9.95 else 1 if like < 99.5 else 0}f}"
