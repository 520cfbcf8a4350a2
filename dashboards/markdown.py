"""Markdown: a Board as GitHub shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.board.board import Board
from .escape import in_markdown
from .view import ANSWER, View

LONGEST_REASON = 1000


def render(boards: Sequence[Board], view: View = ANSWER) -> str:
    """GitHub-flavoured markdown of all boards, ending with one newline."""
    return "\n\n".join(_board(board, view) for board in boards) + "\n"


def _board(board: Board, view: View) -> str:
    places = view.places(board)
    reasons = [
        f"- **{in_markdown(', '.join(names))}**: {in_markdown(reason, LONGEST_REASON)}"
        for reason, names in board.reasons
    ]
    notes = [
        f"- {'⚠ ' if note.warning else ''}**{in_markdown(note.topic)}**: {in_markdown(note.text)}"
        for note in view.notes(board)
    ]
    more = view.more(board, len(places))
    sections = [f"## {in_markdown(board.question)}", f"**{in_markdown(board.headline)}**" * bool(board.headline)]
    sections.append(_table(board, places))
    sections += ["\n".join(["Unranked:", "", *reasons])] if reasons else []
    for part in board.parts:
        sections += [f"### {in_markdown(part.title)}", _table(part, view.places(part), with_rank=False)]
    sections += ["\n".join(notes), in_markdown(more)]
    return "\n\n".join(filter(None, sections))


def _table(board: Board, places: Sequence[int], *, with_rank: bool = True) -> str:
    # by hand, since `DataFrame.to_markdown` pads every cell to the longest: one long name would change every line
    if not board.rows:
        return ""
    header = ["rank"] * with_rank + ["variant", *(in_markdown(board.columns[at].heading) for at in places)]
    lines = [_line(header), _line(["---"] * with_rank + [":---", *["---:"] * len(places)])]
    for kind, row in board.rows:
        rank = [row.place or ("baseline" if kind == "baseline" else "–")] * with_rank
        name = f"**{in_markdown(row.name)}**" if row.place else in_markdown(row.name)
        lines.append(_line([*rank, name, *(in_markdown(row.entries[at].shown()) for at in places)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
