"""Yardstick: the quantity that a board judges quality by, and how its numbers read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..core.metrics import QUANTITIES
from .format import MINUS
from .intervals import Interval

_TITLES = {"bleu": "BLEU", "bits_per_character": "bits/character"}

_ASKED = {"accuracy": "is right most often", "bits_per_character": "spends the fewest bits per character"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """`name`: of `record.QUANTITIES`; `points`: how many a board counts in one of its unit; `margin`: in points.

    An advantage is positive where it is better; a difference has the sign of the quantity itself.
    """

    name: str
    title: str
    unit: str
    points: float
    margin: float
    better: Literal["higher", "lower"]

    @classmethod
    def of(cls, name: str) -> Yardstick:
        """
        >>> Yardstick.of("bleu").title, Yardstick.of("bits_per_character").better
        ('BLEU', 'lower')
        """
        quantity = QUANTITIES[name]
        return cls(
            name=name,
            title=_TITLES.get(name, name.replace("_", " ")),
            unit="%" if quantity.unit == "fraction" else quantity.unit,
            points=quantity.points,
            margin=quantity.margin,
            better="lower" if quantity.better == "lower" else "higher",
        )

    @property
    def is_share(self) -> bool:
        """Whether it is a share of right examples, with the noise of coin tosses."""
        return self.name == "accuracy"

    @property
    def sign(self) -> int:
        return -1 if self.better == "lower" else 1

    @property
    def decimals(self) -> int:
        """As many as tell a tenth of the margin.

        >>> Yardstick.of("accuracy").decimals, Yardstick.of("bits_per_character").decimals
        (1, 3)
        """
        return max(1 - math.floor(math.log10(self.margin)), 0)

    @property
    def question(self) -> str:
        """What a board asks of an attention."""
        return _ASKED.get(self.name, f"has the {'lowest' if self.sign < 0 else 'highest'} {self.title}")

    @property
    def of_difference(self) -> str:
        """The unit of a difference: percentage points are points."""
        return "points" if self.unit == "%" else self.unit

    def margin_words(self, margin: float) -> str:
        """
        >>> [Yardstick.of(name).margin_words(m) for name, m in (("accuracy", 1.0), ("accuracy", 0.5), ("bleu", 0.5))]
        ['1 point', '0.5 points', '0.5 BLEU']
        """
        unit = "point" if self.of_difference == "points" and margin == 1 else self.of_difference
        return f"{margin:g} {unit}"

    def value(self, found: float) -> str:
        """
        >>> Yardstick.of("accuracy").value(0.619)
        '61.9'
        """
        return f"{self.points * found:.{self.decimals}f}"

    def level(self, found: Interval) -> str:
        """
        >>> Yardstick.of("accuracy").level(Interval(0.619, 0.606, 0.632))
        '61.9 ± 1.3'
        """
        if found.low == found.high:
            return self.value(found.value)
        return f"{self.value(found.value)} ± {self.value((found.high - found.low) / 2)}"

    def difference(self, advantage: Interval) -> Interval:
        """In points, with the sign of the quantity: fewer bits are negative, and better.

        >>> Yardstick.of("bits_per_character").difference(Interval(0.02, 0.01, 0.03))
        Interval(value=-0.02, low=-0.03, high=-0.01)
        """
        ends = [self.sign * self.points * end for end in (advantage.value, advantage.low, advantage.high)]
        return Interval(ends[0], min(ends[1:]), max(ends[1:]))

    def signed(self, advantage: float) -> str:
        """
        >>> accuracy, bits = Yardstick.of("accuracy"), Yardstick.of("bits_per_character")
        >>> accuracy.signed(0.004), accuracy.signed(-0.0001), bits.signed(0.02)
        ('+0.4', '0.0', '−0.020')
        """
        return self._signed(self.sign * self.points * advantage)

    def gap(self, advantage: Interval) -> str:
        """
        >>> Yardstick.of("accuracy").gap(Interval(0.004, -0.009, 0.017))
        '+0.4 (−0.9 to +1.7)'
        """
        shown = self.difference(advantage)
        return f"{self._signed(shown.value)} ({self._signed(shown.low)} to {self._signed(shown.high)})"

    def gap_in_brief(self, advantage: Interval) -> str:
        """
        >>> Yardstick.of("accuracy").gap_in_brief(Interval(0.004, -0.009, 0.017))
        '+0.4 ± 1.3'
        """
        return f"{self.signed(advantage.value)} ± {self.value((advantage.high - advantage.low) / 2)}"

    def _signed(self, points: float) -> str:
        text = f"{abs(points):.{self.decimals}f}"
        return text if float(text) == 0 else (MINUS if points < 0 else "+") + text


ACCURACY = Yardstick.of("accuracy")

YARDSTICKS = tuple(Yardstick.of(name) for name, quantity in QUANTITIES.items() if quantity.points > 0)
"""What a task may be judged by, the first that it measures on its test split first."""
