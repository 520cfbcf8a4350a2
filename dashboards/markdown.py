"""Markdown: a Board as GitHub shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.board.board import Board
from .escape import in_markdown

LONGEST_REASON = 1000


def render(boards: Sequence[Board]) -> str:
    """GitHub-flavoured markdown of all boards, ending with one newline."""
    return "\n\n".join(_board(board) for board in boards) + "\n"


def _board(board: Board) -> str:
    reasons = [
        f"- **{in_markdown(', '.join(names))}**: {in_markdown(reason, LONGEST_REASON)}"
        for reason, names in board.reasons
    ]
    headline = f"**{in_markdown(board.headline)}**" if board.headline else ""
    sections = [f"## {in_markdown(board.question)}", headline, _table(board)]
    sections += ["\n".join(["Unranked:", "", *reasons])] if reasons else []
    for part in board.parts:
        sections += [f"### {in_markdown(part.title)}", _table(part, with_rank=False)]
    sections.append(
        "\n".join(
            f"- {'⚠ ' if note.warning else ''}**{in_markdown(note.topic)}**: {in_markdown(note.text)}"
            for note in board.notes
        )
    )
    return "\n\n".join(section for section in sections if section)


def _table(board: Board, *, with_rank: bool = True) -> str:
    if not board.rows:
        return ""
    filled = board.filled
    header = ["rank"] * with_rank + ["variant", *(in_markdown(board.columns[at].heading) for at in filled)]
    lines = [_line(header), _line(["---"] * with_rank + [":---", *["---:"] * len(filled)])]
    for kind, row in board.rows:
        rank = [row.place or ("baseline" if kind == "baseline" else "–")] * with_rank
        name = f"**{in_markdown(row.name)}**" if row.place else in_markdown(row.name)
        lines.append(_line([*rank, name, *(in_markdown(row.entries[at].shown()) for at in filled)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
