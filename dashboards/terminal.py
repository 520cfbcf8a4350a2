"""Terminal: a Board as tables that fit 80 columns and use 200."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ..bench.board.board import Board, Form, Note
from .escape import visible

GAP = 2
CHIEF = 3
"""Texts and headings get shorter before any column up to this importance is hidden."""

KEPT = 1
"""Columns up to this importance are never hidden: what does not fit stands in a second table."""

LONGEST_NAME = 32
SHORTEST_NAME = 12
"""Names are cut to this many letters before a column is hidden."""

NOTE_LINES = 6
"""Lines of notes, the line that counts the rest among them, where not all are asked for."""

NAMED = 4
"""So many of the names that share a reason are listed, where not all notes are asked for."""

VERDICT = "verdict"
"""The column of conclusions: coloured in a board; below a part in which there is no room for it."""

LONGEST_REASON = 300

_STEPS: tuple[tuple[Form, bool], ...] = (("full", False), ("brief", False), ("brief", True), ("bare", True))
"""How much of the cells is shown, and whether headings are short, from the widest board to the narrowest."""

_STYLES = {"better": "green", "worse": "red"}


def show(boards: Sequence[Board], console: Console, *, all_notes: bool = False, command: str = "leaderboard") -> None:
    """Prints the boards at the console's width, with `NOTE_LINES` lines of notes each, or with all.

    `command`: the one whose option `--notes` shows all.
    """
    for at, board in enumerate(boards):
        if at:
            console.print()
        _show(board, console, all_notes, command)


def render(boards: Sequence[Board], width: int = 120, *, all_notes: bool = False, command: str = "leaderboard") -> str:
    """The boards as plain text of that width, without colours; the rest as in `show`."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as capture:
        show(boards, console, all_notes=all_notes, command=command)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _show(board: Board, console: Console, all_notes: bool, command: str) -> None:
    console.print(Text(visible(board.question), style="bold"))
    if board.headline:
        console.print(Text(visible(board.headline)))
    console.print()
    chosen = layout(board, console.width)
    _print_tables(board, chosen, console)
    for reason, names in board.reasons:
        # the headline gives a reason that all rows share
        if all_notes or visible(reason) not in visible(board.headline):
            _note(console, f"– {_listed(names, len(names) if all_notes else NAMED)}", visible(reason, LONGEST_REASON))
    for part in board.parts:
        fitting = layout(part, console.width)
        console.print(Text(f"\n{visible(part.title)}", style="bold"))
        _print_tables(part, fitting, console)
        for name, text in _hidden_verdicts(part, fitting):
            _note(console, name, text)
    if board.parts:
        console.print()
    if all_notes:
        _all_notes(board, chosen, console)
    else:
        _chief_notes(board, chosen, console, command)


def _all_notes(board: Board, chosen: Layout, console: Console) -> None:
    hidden = [board.columns[at] for at in chosen.hidden]
    for note in board.notes:
        if note.column not in {column.name for column in hidden}:
            _note(console, note.topic, visible(note.text), _style(note))
    if hidden or chosen.form != "full":
        titles = [*(column.title for column in hidden), *([] if chosen.form == "full" else ["intervals"])]
        _note(console, "not shown", f"{visible(', '.join(titles))}; widen the terminal, or use --format markdown")


def _chief_notes(board: Board, chosen: Layout, console: Console, command: str) -> None:
    """The most important notes, as many as there are lines for, and how to see the rest."""
    hidden = {board.columns[at].name for at in chosen.hidden}
    shown, room = 0, NOTE_LINES - 1
    for note in board.shown_notes:
        text = visible(note.text)
        fits = cell_len(visible(note.topic)) + cell_len(text) + 2 <= console.width
        lines = 1 if fits else len(_text(note.topic, text).wrap(console, console.width))
        if note.column not in hidden and lines <= room:
            _note(console, note.topic, text, _style(note))
            shown, room = shown + 1, room - lines
    rest = sum(note.column not in hidden for note in board.notes) - shown
    more = [f"{rest} note{'s' * (rest > 1)} with `{command} --notes`"] if rest > 0 else []
    more += [f"{len(hidden)} column{'s' * (len(hidden) > 1)} with --format markdown"] if hidden else []
    if more:
        _note(console, "more", "; ".join(more))


def _print_tables(board: Board, chosen: Layout, console: Console) -> None:
    for at, columns in enumerate(chosen.tables if board.rows else ()):
        if at:
            console.print()
        console.print(_table(board, chosen, columns, console.width))


def _table(board: Board, chosen: Layout, columns: Sequence[int], width: int) -> Text:
    """The columns as lines: names to the left, numbers to the right, an empty line between kinds of rows."""
    # rich's own tables measure every cell anew, which for a thousand boards takes longer than to score them
    headings = [_heading(board, at, chosen.form, chosen.short) for at in columns]
    lines = [_Line(("rank", "variant", *headings), "bold", "bold")]
    breaks = set()
    before = None
    for kind, row in board.rows:
        if before not in (None, kind):
            breaks.add(len(lines))
        before = kind
        rank = row.place or ("·" if kind == "baseline" else "–")
        cells = [visible(row.entries[at].shown(chosen.form)) for at in columns]
        dim = "dim" if kind == "baseline" else ""
        lines.append(_Line((rank, _cut(row.name, chosen.names), *cells), dim or "bold", dim))
    widths = [max(map(cell_len, texts)) for texts in zip(*(line.texts for line in lines), strict=True)]
    # where nothing is ranked, that column would be empty
    first = 0 if board.ranked else 1
    drawn_lines = []
    for number, line in enumerate(lines):
        drawn = Text()
        for at in range(first, len(widths)):
            text = line.texts[at]
            space = " " * (widths[at] - cell_len(text))
            conclusion = at > 1 and board.columns[columns[at - 2]].name == VERDICT
            colour = _STYLES.get(text.partition(" ")[0], "") if conclusion else ""
            drawn.append(" " * GAP * (at > first))
            drawn.append(text + space if at < 2 else space + text, (line.name if at == 1 else line.rest) or colour)
        drawn.rstrip()
        drawn.truncate(width, overflow="ellipsis")
        drawn_lines += [*[Text()] * (number in breaks), drawn]
        if number == 0:
            drawn_lines.append(Text("─" * min(sum(widths[first:]) + GAP * (len(widths) - 1 - first), width)))
    return Text("\n", no_wrap=True).join(drawn_lines)


class _Line(NamedTuple):
    """The texts of one line of a table, and the styles of its name and of the rest."""

    texts: tuple[str, ...]
    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the columns of each table, of which there is one where a board fits, and of the columns left out.

    `form`: how much of a cell is shown; `short`: with short headings; `names`: the width that names are cut to.
    """

    tables: tuple[tuple[int, ...], ...]
    hidden: tuple[int, ...]
    form: Form
    short: bool
    names: int


def layout(board: Board, width: int) -> Layout:
    """The most important columns stay; intervals get short, then headings, then intervals go, then names are cut.

    Columns without any entry are neither shown nor hidden.
    """
    rows, filled = [row for _, row in board.rows], board.filled
    by_importance = sorted(filled, key=lambda at: board.columns[at].importance)
    places = max([4, *(cell_len(row.place) for row in rows)]) + GAP if board.ranked else 0
    names = max([7, *(cell_len(_cut(row.name, LONGEST_NAME)) for row in rows)])
    widths: dict[int, int] = {}
    form: Form = "full"
    for form, short in _STEPS:
        widths = {at: GAP + _width(board, at, form, short) for at in filled}
        # intervals are worth more than the columns that are not always kept
        least = CHIEF if not short else KEPT
        needed = sum(widths[at] for at in filled if board.columns[at].importance <= least)
        if places + names + needed <= width:
            break
    else:
        names = min(names, max(SHORTEST_NAME, width - places - needed))
    room = width - places - names
    tables: list[list[int]] = [[]]
    hidden: list[int] = []
    used = 0
    for at in by_importance:
        fits = used + widths[at] <= room and not hidden
        if not fits and board.columns[at].importance > KEPT:
            hidden.append(at)
            continue
        if not fits and tables[-1]:
            tables.append([])
            used = 0
        tables[-1].append(at)
        used += widths[at]
    return Layout(tuple(tuple(sorted(found)) for found in tables), tuple(sorted(hidden)), form, short, names)


def _width(board: Board, at: int, form: Form, short: bool) -> int:
    texts = [row.entries[at].shown(form) for _, row in board.rows]
    return max(map(cell_len, [_heading(board, at, form, short), *map(visible, texts)]))


def _heading(board: Board, at: int, form: Form, short: bool) -> str:
    """The heading of the column; where there is no room for intervals, none for the arrow either."""
    column = board.columns[at]
    title = column.short or column.title if short else column.title
    return visible(title if form == "bare" else title + column.arrow)


def _hidden_verdicts(board: Board, chosen: Layout) -> Iterator[tuple[str, str]]:
    """Names and conclusions of the rows, where there was no room for that column."""
    for at in chosen.hidden:
        if board.columns[at].name == VERDICT:
            yield from (
                (_cut(row.name, LONGEST_NAME), visible(row.entries[at].text))
                for _, row in board.rows
                if row.entries[at].text
            )


def _note(console: Console, topic: str, text: str, style: str = "dim") -> None:
    console.print(_text(topic, text, style))


def _text(topic: str, text: str, style: str = "dim") -> Text:
    return Text.assemble((visible(topic), f"{style} bold"), (f": {text}" if text else "", style))


def _style(note: Note) -> str:
    return "yellow" if note.warning else "dim"


def _listed(names: Sequence[str], most: int) -> str:
    rest = len(names) - most
    return ", ".join(_cut(name, LONGEST_NAME) for name in names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _cut(name: str, longest: int) -> str:
    name = visible(name)
    return name if cell_len(name) <= longest else set_cell_size(name, longest - 1) + "…"
