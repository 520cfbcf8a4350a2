"""Markdown: a Board as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..bench.board.board import Board, Column, Row, TableCell
from .escape import visible

LONGEST_REASON = 1000

_MARKUP = re.compile(r"([\\`*_\[\]|~$])")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def render(boards: Sequence[Board]) -> str:
    """GitHub-flavoured markdown of all boards, ending with one newline."""
    return "\n\n".join(_board(board) for board in boards) + "\n"


def _board(board: Board) -> str:
    parts = [f"## {_plain(board.title)}", f"_{_plain(board.question)}_", _table(board)]
    reasons = [row for row in [*board.unranked, *board.baselines] if row.reason]
    if reasons:
        parts.append("\n".join(["Unranked:", "", *map(_reason, reasons)]))
    for part in board.parts:
        parts += [f"### {_plain(part.title)}", _table(part, placed=False)]
    notes = []
    for footnote in board.footnotes:
        sign = "⚠ " if footnote.warning else ""
        notes.append(f"- {sign}**{_plain(footnote.topic)}**: {_plain(footnote.text)}")
    parts.append("\n".join(notes))
    return "\n\n".join(part for part in parts if part)


def _table(board: Board, *, placed: bool = True) -> str:
    rows = [*board.ranked, *board.unranked, *board.baselines]
    if not rows:
        return ""
    filled = [c for i, c in enumerate(board.columns) if any(row.entries[i].text for row in rows)]
    header = [*(["rank"] if placed else []), "variant", *(_heading(column) for column in filled)]
    lines = [_line(header), _line([*(["---"] if placed else []), ":---", *("---:" for _ in filled)])]
    for row in rows:
        kind = [row.place or ("baseline" if row in board.baselines else "–")] if placed else []
        entries = [_entry(row.entries[board.columns.index(column)]) for column in filled]
        lines.append(_line([*kind, f"**{_plain(row.name)}**" if row.place else _plain(row.name), *entries]))
    return "\n".join(lines)


def _reason(row: Row) -> str:
    return f"- **{_plain(row.name)}**: {_plain(row.reason, LONGEST_REASON)}"


def _heading(column: Column) -> str:
    return column.title + {"higher": " ↑", "lower": " ↓"}.get(column.better, "")


def _entry(entry: TableCell) -> str:
    return _plain(entry.text) + (f" {entry.note}" if len(entry.note) == 1 else "")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str, longest: int | None = None) -> str:
    """`text` so that GitHub shows it as it stands: no markup, HTML or mention in it takes effect."""
    text = _MARKUP.sub(r"\\\1", visible(text, longest))
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, entity)
    # a zero-width space, since GitHub tells people of a mention even where the sign is an entity
    return _MENTION.sub("@\u200b", text)
