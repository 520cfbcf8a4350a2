"""Cells: the forms in which boards show a number; and columns, each with the function that makes its cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ..core.metrics import Interval, Metric
from ..score.contrasts import Contrast
from ..stats.format import point, speed
from ..stats.intervals import Estimate, Share
from ..stats.scoring import ratio
from .board import Board, Column, Row, TableCell
from .notes import note

Cell = Callable[[str], TableCell]
"""Makes the cell of the variant with this name."""

Columns = Sequence[tuple[Column, Cell]]


def when(present: bool, column: Column, cell: Cell) -> list[tuple[Column, Cell]]:
    """The column with its cells, where the board has it."""
    return [(column, cell)] if present else []


def cells_of(columns: Columns, name: str) -> tuple[TableCell, ...]:
    """The cells of the row with that name."""
    return tuple(cell(name) for _, cell in columns)


def plain_columns(columns: Columns, answers: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns alone, as a `Board` holds them; `answers`: names of those always shown, empty for all."""
    return tuple(replace(column, shown=not answers or column.name in answers) for column, _ in columns)


def finished(board: Board) -> Board:
    """The board without the columns that are empty in all rows, with the notes on the others among its own."""
    rows = [row for _, row in board.rows]
    kept = [at for at in range(len(board.columns)) if not rows or any(row.entries[at].text for row in rows)]
    columns = tuple(board.columns[at] for at in kept)

    def cut(rows: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(replace(row, entries=tuple(row.entries[at] for at in kept)) for row in rows)

    notes = [
        note("column", column=board.columns[at].name, title=board.columns[at].title, text=board.columns[at].note)
        for at in kept
        if board.columns[at].note
        and (not board.columns[at].mark or any(row.entries[at].note == board.columns[at].mark for row in rows))
    ]
    return replace(
        board, columns=columns, ranked=cut(board.ranked), unranked=cut(board.unranked), baselines=cut(board.baselines),
        notes=(*board.notes, *notes),
    )  # fmt: skip


EMPTY = TableCell()


def number_cell(value: float | None, words: Callable[[float], str], note: str = "") -> TableCell:
    """A number in the form that `words` gives it; empty for None."""
    return EMPTY if value is None else TableCell(text=words(value), value=value, note=note)


def mean_cell(values: Sequence[float], words: Callable[[float], str]) -> TableCell:
    """The mean over seeds, from the lowest to the highest; empty for none."""
    if not values:
        return EMPTY
    mean = math.fsum(values) / len(values)
    return TableCell(text=words(mean), value=mean, low=min(values), high=max(values))


def interval_cell(found: Interval, text: str, brief: str = "", note: str = "", bare: str = "") -> TableCell:
    """A value with its interval."""
    return TableCell(text=text, brief=brief, bare=bare, value=found.value, low=found.low, high=found.high, note=note)


def level_cell(metric: Metric, level: Interval, brief: str = "", note: str = "") -> TableCell:
    """The level of a metric, in its points."""
    shown = Interval(*(metric.points * end for end in (level.value, level.low, level.high)))
    return interval_cell(shown, metric.level(level), brief, note, metric.value(level.value))


def difference_cell(metric: Metric, advantage: Interval, suffix: str = "") -> TableCell:
    """A difference in a metric, in its points and with the sign of the metric itself."""
    brief, bare = metric.gap_in_brief(advantage) + suffix, metric.signed(advantage.value) + suffix
    return interval_cell(metric.difference(advantage), metric.gap(advantage) + suffix, brief, bare=bare)


def contrast_cell(contrast: Contrast, suffix: str = "") -> TableCell:
    """The difference of two variants; without an interval where only the shares that learned are tested."""
    if not contrast.by_shares:
        return difference_cell(contrast.metric, contrast.interval, suffix)
    points = contrast.metric.difference(contrast.interval).value
    return TableCell(text=contrast.metric.signed(contrast.advantage.value) + suffix, value=points)


def ratio_cell(cost: Estimate, note: str = "") -> TableCell:
    """A ratio of times, from its logarithm, as faster or slower than the reference."""
    found = ratio(cost)
    return interval_cell(found, speed(found), speed(point(found.value)), note)


def share_cell(found: Share) -> TableCell:
    """The number of trainings that learned, with the exact interval of their share.

    >>> share_cell(Share(3, 6)).text
    '3 of 6 (12–88 %)'
    """
    ends, count = found.interval(), found.trained
    counts = f"{found.learned} of {count}"
    text = f"{counts} ({100 * ends.low:.0f}–{100 * ends.high:.0f} %)"
    return TableCell(
        text=text, brief=counts, bare=counts, value=found.learned, low=count * ends.low, high=count * ends.high
    )


def reference_cell(value: float) -> TableCell:
    """The cell of the reference in a column of comparisons with it."""
    return TableCell(text="reference", bare="ref.", value=value)
