"""Setting tables: accuracy by length and by difficulty, and the attention on the right key, as small boards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ..core.metrics import Metric
from ..core.record import Outcome
from ..score.key import BoardKey
from ..score.quality import SeedScores
from ..score.settings import (
    LENGTH,
    POSITION,
    WEIGHT,
    Series,
    Values,
    by_seed,
    ends_of_extrapolation,
    longest_at,
    series_of,
)
from ..stats.intervals import mean_estimate
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .board import Board, Column, Note, Row, TableCell
from .cells import EMPTY, Cell, cells_of, difference_cell, mean_cell, plain_columns

HIGH = 0.9
"""The accuracy whose first step a board shows, and up to which length it holds."""

FACTOR = 16
"""The change of a score is shown from the training length to this many times it."""

BY_AXIS, RIGHT_KEY = "by", "right-key"
"""The ends of the names of these boards: `/by/pairs`, `/right-key/length`."""

_TITLES = {
    LENGTH: "length",
    POSITION: "position, up to the number above",
    "pairs": "number of pairs",
    "noise": "share of noise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingResults:
    """The results of a board by setting. `scores`, `weights`: of each variant and baseline, one a seed.

    `series`: of the scores, the length first; `along_length` of the weights. `shortest`, `trained`: lengths of training
    sequences; None where the preset names none.
    """

    metric: Metric
    scores: Mapping[str, Sequence[Values]]
    weights: Mapping[str, Sequence[Values]]
    series: tuple[Series, ...]
    along_length: Series | None
    trained: float | None
    shortest: float | None

    @classmethod
    def of(
        cls,
        table: ResultTable,
        board_key: BoardKey,
        metric: Metric,
        scores: Mapping[str, SeedScores],
        setting: Mapping[str, Any],
    ) -> SettingResults:
        rows = {name: _counted(table, own.compared) for name, own in scores.items()}
        baselines = newest(board_key.runs(table, "baseline"), "variant")
        rows |= {run.variant: [run] for run in baselines if run.outcome == Outcome.OK}
        found = {
            name: {variant: values for variant, own in rows.items() if (values := by_seed(table, own, name))}
            for name in (metric.name, WEIGHT)
        }
        series = {
            name: series_of({place for seeds in values.values() for one in seeds for place in one})
            for name, values in found.items()
        }
        numbers = [setting.get(name) for name in ("shortest", "length")]
        shortest, trained = (float(n) if isinstance(n, int | float) else None for n in numbers)
        return cls(
            metric=metric,
            scores=found[metric.name],
            weights=found[WEIGHT],
            series=tuple(series[metric.name]),
            along_length=next((one for one in series[WEIGHT] if one.axis == LENGTH), None),
            trained=trained,
            shortest=shortest,
        )

    @property
    def by_length(self) -> Series | None:
        return next((one for one in self.series if one.axis == LENGTH), None)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The tested lengths between which the change of a score is shown."""
        if self.by_length is None or self.trained is None:
            return None
        return ends_of_extrapolation([at for at, _ in self.by_length.places], self.trained, FACTOR)

    def means(self, variant: str) -> dict[float, float]:
        """The mean score over seeds by length."""
        series = self.by_length
        if series is None:
            return {}
        found = {at: values_at(series, at, self.scores.get(variant, ())) for at, _ in series.places}
        return {at: math.fsum(values) / len(values) for at, values in found.items() if values}

    def longest(self, variant: str) -> TableCell:
        """The length up to which the mean score is `HIGH`, in a cell; + where no longer one was tested."""
        means = self.means(variant)
        if not means:
            return EMPTY
        longest = longest_at(means, HIGH)
        if longest is None:
            return TableCell(text="none")
        more = "+" if longest == max(means) else ""
        times = f" ({longest / self.trained:.3g}×)" if self.trained else ""
        short = f"{longest:,.0f}{more}"
        return TableCell(text=short + times, brief=short, value=longest)

    def change(self, variant: str) -> TableCell:
        """The change of the score between `ends`, with its interval over seeds, in a cell."""
        series, ends = self.by_length, self.ends
        if series is None or ends is None:
            return EMPTY
        along = [series.along(one) for one in self.scores.get(variant, ())]
        changes = [found[ends[1]] - found[ends[0]] for found in along if set(ends) <= found.keys()]
        if not changes:
            return EMPTY
        # as an advantage, which is what a difference is shown from
        gains = [self.metric.sign * change for change in changes]
        if len(gains) > 1:
            return difference_cell(self.metric, mean_estimate(gains).interval())
        text = self.metric.signed(gains[0])
        return TableCell(text=text, value=self.metric.points * changes[0])


def setting_boards(board_key: BoardKey, found: SettingResults, names: Sequence[str]) -> list[Board]:
    """One for each axis of the settings, then the attention on the right key.

    `names`: the variants in the order of the board; all others are baselines.
    """
    metric = found.metric
    title = metric.title[:1].upper() + metric.title[1:]
    boards = [
        _board(
            f"{board_key.name}/{BY_AXIS}/{one.axis}",
            f"{title} by {_words(one, found)}",
            one,
            found.scores,
            names,
            unit=metric.display_unit,
            better=metric.better,
            words=metric.value,
            points=metric.points,
        )
        for one in found.series
    ]
    if found.along_length is not None:
        boards.append(
            _board(
                f"{board_key.name}/{RIGHT_KEY}/{LENGTH}",
                f"Attention weight on the right key by {_words(found.along_length, found)}",
                found.along_length,
                found.weights,
                names,
                unit="fraction",
                words="{:.2f}".format,
            )
        )
    return boards


def setting_notes(found: SettingResults) -> Iterator[Note]:
    """The way in which the tables by setting are made."""
    score = found.metric.title
    if any(one.axis == POSITION for one in found.series):
        of_windows = "windows of the test that overlap only at the end of a text, longer than those of training"
        text = f"the {score} is of {of_windows}; each number counts the positions since the one before"
        yield Note(topic="positions", kind="method", text=text)
    elif found.series:
        rest = "other axes fixed where most lengths were tested, difficulties at the shortest length"
        text = f"the {score} above is the mean over all settings; a table has one setting each, {rest}"
        yield Note(topic="settings", kind="method", text=text)
    if found.series and found.along_length is not None:
        text = "weight of the one head that puts most on the key that holds the answer; weight that spreads falls with"
        yield Note(topic="right key", kind="method", text=f"{text} the length")


def values_at(series: Series, at: float, seeds: Sequence[Values]) -> list[float]:
    """The values of the seeds that have one there."""
    place = dict(series.places)[at]
    return [one[place] for one in seeds if place in one]


def _counted(table: ResultTable, own: SeedScores) -> list[ResultRow]:
    """The rows of these seeds, by seed."""
    rows = [table.rows[at] for at in own.rows]
    finished = {row.seed: row for row in rows if row.outcome == Outcome.OK}
    return [finished[seed] for seed in own.seeds if seed in finished]


def _words(series: Series, found: SettingResults) -> str:
    """The axis of a table, what is fixed, and the lengths of training."""
    fixed = [f"{value:g} {name}" for name, value in series.fixed]
    if series.axis not in (LENGTH, POSITION):
        fixed.append("each at the shortest length tested")
    elif found.trained:
        short = f"{found.shortest:,.0f} to " if found.shortest else ""
        fixed.append(f"trained at {short}{found.trained:,.0f}")
    title = _TITLES.get(series.axis, series.axis.replace("_", " "))
    return title + (f" ({', '.join(fixed)})" if fixed else "")


def _board(
    name: str,
    title: str,
    series: Series,
    results: Mapping[str, Sequence[Values]],
    names: Sequence[str],
    *,
    unit: str,
    words: Callable[[float], str],
    better: Literal["higher", "lower", ""] = "",
    points: float = 1.0,
) -> Board:
    def cell(at: float, variant: str) -> TableCell:
        found = mean_cell(values_at(series, at, results.get(variant, ())), words)
        if found.value is None or found.low is None or found.high is None:
            return found
        return replace(found, value=points * found.value, low=points * found.low, high=points * found.high)

    columns: list[tuple[Column, Cell]] = [
        (Column(name=f"{series.axis}_{at:.15g}", title=f"{at:,.0f}" if at == int(at) else f"{at:g}", unit=unit,
                better=better if number == 0 else "", importance=number,
                description=f"at {series.axis.replace('_', ' ')} {at:g}: mean over seeds, from the lowest to the "
                "highest"),
         partial(cell, at))
        for number, (at, _) in enumerate(series.places)
    ]  # fmt: skip
    rows = {variant: Row(name=variant, entries=cells_of(columns, variant)) for variant in results}
    return Board(
        name=name,
        title=title,
        question="",
        columns=plain_columns(columns),
        ranked=(),
        unranked=tuple(rows[variant] for variant in names if variant in rows),
        baselines=tuple(row for variant, row in rows.items() if variant not in names),
    )
