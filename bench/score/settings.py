"""Settings: test results of one training at several lengths and difficulties, lined up along one axis at a time.

A task that tests several settings measures each in the same Record, `where` naming it: length=256, pairs=16. The ranked
result is their mean and names none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..store.rows import ResultRow
from ..store.table import ResultTable

LENGTH = "length"

POSITION = "position"
"""The last of some positions of a longer window, of which a test of language modelling says the cost."""

WEIGHT = "weight_on_right_key"
"""The metric of the attention that the right keys get, by setting."""

MOST_VALUES = 64
"""The most values of one axis: more are no settings that somebody chose, and no table."""

_NO_AXES = ("examples", "split")

Place = tuple[tuple[str, float], ...]
"""A setting: its axes by name, with their values."""

Values = Mapping[Place, float]


@dataclass(frozen=True, slots=True)
class Series:
    """The settings along `axis`, by its value; `fixed`: the other axes, but for the length, have these values.

    Along the length all other axes are fixed, at the values that most lengths were tested with. Along another axis each
    value is at the shortest length tested with it, which is the nearest to training.
    """

    axis: str
    fixed: Place
    places: tuple[tuple[float, Place], ...]

    def along(self, values: Values) -> dict[float, float]:
        """The values at these settings, by the value of the axis."""
        return {at: values[place] for at, place in self.places if place in values}


def place_of(where: Mapping[str, Any]) -> Place:
    """The setting that a test result names, () where it names none."""
    if where.get("split") != "test":
        return ()
    return tuple(
        sorted(
            (axis, value)
            for axis, value in where.items()
            if axis not in _NO_AXES and isinstance(value, int | float) and not isinstance(value, bool)
        )
    )


def setting_values(
    table: ResultTable, at: int, name: str, known: dict[int, dict[Place, int]] | None = None
) -> dict[Place, float]:
    """The test results named so of the Record in row `at`, by setting; without the one that names no setting.

    `known`: where the results at each setting are, by the identity of labels, which many Records share.
    """
    known = {} if known is None else known
    measured = table.measured[at]
    labels = measured.labels
    if id(labels) not in known:
        found = known[id(labels)] = {}
        for number in labels.places.get(name, ()):
            if place := place_of(labels[number].where):
                found.setdefault(place, number)
    return {place: measured.values[number] for place, number in known[id(labels)].items()}


def series_of(places: Collection[Place]) -> list[Series]:
    """One for each axis with two values or more, and at most `MOST_VALUES`, the length first.

    >>> tested = [(("length", n), ("pairs", p)) for n, p in ((64, 4), (64, 16), (128, 32), (512, 16))]
    >>> for each in series_of(tested):
    ...     print(each.axis, each.fixed, [(value, dict(place)["length"]) for value, place in each.places])
    length (('pairs', 16),) [(64, 64), (512, 512)]
    pairs () [(4, 64), (16, 64), (32, 128)]
    """
    axes = sorted({axis for place in places for axis, _ in place}, key=lambda axis: (axis != LENGTH, axis))
    found = []
    for axis in axes:
        groups: dict[Place, dict[float, Place]] = {}
        for place in sorted(places, key=lambda one: dict(one).get(LENGTH, 0.0)):
            own = dict(place)
            if axis in own:
                fixed = tuple(pair for pair in place if pair[0] not in (axis, LENGTH))
                groups.setdefault(fixed, {}).setdefault(own[axis], place)
        fixed, along = max(sorted(groups.items()), key=lambda item: len(item[1]))
        if 1 < len(along) <= MOST_VALUES:
            found.append(Series(axis, fixed, tuple(sorted(along.items()))))
    return found


def by_seed(table: ResultTable, rows: Iterable[ResultRow], name: str) -> list[dict[Place, float]]:
    """The results by setting of each of these rows that has any."""
    known: dict[int, dict[Place, int]] = {}
    return [values for row in rows if (values := setting_values(table, row.at, name, known))]


def longest_at(values: Mapping[float, float], level: float) -> float | None:
    """The longest length at which, and at all shorter ones, the value is `level` or more; None where at none.

    >>> longest_at({64: 1.0, 256: 0.95, 1024: 0.4}, 0.9), longest_at({64: 0.5, 256: 0.95}, 0.9)
    (256, None)
    """
    longest = None
    for length, value in sorted(values.items()):
        if value < level:
            break
        longest = length
    return longest


def ends_of_extrapolation(lengths: Sequence[float], trained: float, factor: float) -> tuple[float, float] | None:
    """The longest tested length within training, and the first at `factor` times the training length or more.

    None where one of them was not tested.

    >>> ends_of_extrapolation([64, 512, 2048], 128, 16), ends_of_extrapolation([64, 512], 128, 16)
    ((64, 2048), None)
    """
    within = [length for length in lengths if length <= trained]
    beyond = [length for length in lengths if length >= factor * trained]
    return (max(within), min(beyond)) if within and beyond else None
