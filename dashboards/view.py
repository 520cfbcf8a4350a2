"""View: the details of a Board that a person asks for; every display of text shows these and counts the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..bench.board.board import Board, Note


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The notes and columns that are shown beside the answer.

    `all_notes`: every note in place of the most important ones. `columns`: names with commas between them, `all`, or
    empty for the columns that answer the board's question. `command`: the one whose options show more.
    """

    all_notes: bool = False
    columns: str = ""
    command: str = "leaderboard"

    def notes(self, board: Board) -> tuple[Note, ...]:
        """The notes to show below the board."""
        return board.notes if self.all_notes else board.shown_notes

    def places(self, board: Board) -> tuple[int, ...]:
        """Places of the columns to show; a column without any text is never shown."""
        if not self.columns:
            return board.shown_columns
        return tuple(at for at in board.filled if self.columns == "all" or board.columns[at].name in self._names)

    def unknown(self, boards: Iterable[Board]) -> list[str]:
        """The names of columns that no board has."""
        known = {column.name for board in boards for part in (board, *board.parts) for column in part.columns}
        return [name for name in self._names if name not in known] if self.columns not in ("", "all") else []

    @property
    def _names(self) -> list[str]:
        return [name.strip() for name in self.columns.split(",")]

    def more(self, board: Board, columns: int) -> str:
        """The command and the options that show the rest, of which `columns` are shown; empty where all is shown."""
        notes, hidden = len(board.notes) - len(self.notes(board)), len(board.filled) - columns
        counts = ((hidden, "column", "--columns all"), (notes, "note", "--notes"))
        rest = [f"{count} {noun}{'s' * (count > 1)} ({option})" for count, noun, option in counts if count]
        return f"more with attnbench {self.command}: {', '.join(rest)}" if rest else ""


ANSWER = View()
"""The answer alone: the most important notes, and the columns that answer the question."""
