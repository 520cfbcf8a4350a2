"""Columns: what a board is built from, each a `Column` with the function that makes its cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

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
