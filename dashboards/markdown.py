"""Markdown: a Board as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..bench.board.board import Board
from .escape import visible

LONGEST_REASON = 1000

_MARKUP = re.compile(r"([\\`*_\[\]|~$])")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def render(boards: Sequence[Board]) -> str:
    """GitHub-flavoured markdown of all boards, ending with one newline."""
    return "\n\n".join(_board(board) for board in boards) + "\n"


def _board(board: Board) -> str:
    reasons = [
        f"- **{_escaped(', '.join(names))}**: {_escaped(reason, LONGEST_REASON)}" for reason, names in board.reasons
    ]
    headline = f"**{_escaped(board.headline)}**" if board.headline else ""
    sections = [f"## {_escaped(board.question)}", headline, _table(board)]
    sections += ["\n".join(["Unranked:", "", *reasons])] if reasons else []
    for part in board.parts:
        sections += [f"### {_escaped(part.title)}", _table(part, with_rank=False)]
    sections.append(
        "\n".join(
            f"- {'⚠ ' if note.warning else ''}**{_escaped(note.topic)}**: {_escaped(note.text)}" for note in board.notes
        )
    )
    return "\n\n".join(section for section in sections if section)


def _table(board: Board, *, with_rank: bool = True) -> str:
    if not board.rows:
        return ""
    filled = board.filled
    header = ["rank"] * with_rank + ["variant", *(board.columns[at].heading for at in filled)]
    lines = [_line(header), _line(["---"] * with_rank + [":---", *["---:"] * len(filled)])]
    for kind, row in board.rows:
        rank = [row.place or ("baseline" if kind == "baseline" else "–")] * with_rank
        name = f"**{_escaped(row.name)}**" if row.place else _escaped(row.name)
        lines.append(_line([*rank, name, *(_escaped(row.entries[at].shown()) for at in filled)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str, longest: int | None = None) -> str:
    """`text` so that GitHub shows it as it stands: no markup, HTML or mention in it takes effect."""
    text = _MARKUP.sub(r"\\\1", visible(text, longest))
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, entity)
    # a zero-width space, since GitHub tells people of a mention even where the sign is an entity
    return _MENTION.sub("@\u200b", text)
