"""Columns: a displayed column together with the function that makes its cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from .board import Column, Note, Row, TableCell
from .notes import NoteKind, footnote

RowContext = TypeVar("RowContext", contravariant=True)
"""All that the cells of one row are made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardColumn(Generic[RowContext]):
    """One column of a board: heading, cells, and the footnote that it needs. A board is a list of these.

    `cell`: makes the cell of one row. `present`: whether the board has the column at all. `footnote`: shown where any
    row has a text in the column or, with a `mark`, where any cell bears that mark. The rest is as in `Column`.
    """

    name: str
    title: str
    cell: Callable[[RowContext], TableCell]
    short: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    description: str = ""
    importance: int = 1
    present: bool = True
    footnote: str = ""
    mark: str = ""
    warning: bool = False


def plain_columns(columns: Iterable[BoardColumn[RowContext]], answers: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns as values, as a `Board` holds them; `answers`: names of those always shown, empty for all."""
    return tuple(
        Column(
            name=c.name,
            title=c.title,
            short=c.short,
            unit=c.unit,
            better=c.better,
            description=c.description,
            importance=c.importance,
            shown=not answers or c.name in answers,
        )
        for c in columns
    )


def cells_of(columns: Iterable[BoardColumn[RowContext]], row: RowContext) -> tuple[TableCell, ...]:
    """The cells of one row."""
    return tuple(column.cell(row) for column in columns)


def column_footnotes(columns: Sequence[BoardColumn[RowContext]], rows: Iterable[Row]) -> Iterator[Note]:
    """The footnotes of the columns that need one, in the order of the columns."""
    for column, cells in zip(columns, zip(*(row.entries for row in rows), strict=True), strict=False):
        if column.footnote and any(cell.note == column.mark if column.mark else cell.text for cell in cells):
            kind, name = NoteKind.COLUMN, column.name
            yield footnote(topic=column.title, text=column.footnote, kind=kind, warning=column.warning, column=name)
