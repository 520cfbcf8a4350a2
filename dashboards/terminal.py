"""Terminal: a Board as tables that fit 80 columns and use 200."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.board.board import Board, Form
from .escape import visible
from .view import ANSWER, View

GAP = 2
CHIEF = 3
"""Texts and headings get shorter before any column up to this importance is hidden."""

KEPT = 1
"""Columns up to this importance are never hidden: what does not fit stands in a second table."""

LONGEST_NAME = 32
SHORTEST_NAME = 12
"""Names fold at this width before a column is hidden."""

SENTENCE = 24
"""The room that a column of sentences needs; where there is no more, its cells take several lines."""

NAMED = 4
"""The most names that share a reason and are listed, where not all notes are asked for."""

VERDICT = "verdict"
"""The column of conclusions, in colour."""

LONGEST_REASON = 300

_STEPS: tuple[tuple[Form, bool], ...] = (("full", False), ("brief", False), ("brief", True), ("bare", True))
"""The form of cells, and whether headings are short, from the widest board to the narrowest."""

_STYLES = {"better": "green", "worse": "red"}


def show(boards: Sequence[Board], console: Console, view: View = ANSWER) -> None:
    """Prints the boards at the console's width."""
    for at, board in enumerate(boards):
        if at:
            console.print()
        _show(board, console, view)


def render(boards: Sequence[Board], width: int = 120, view: View = ANSWER) -> str:
    """The boards as plain text of that width, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as capture:
        show(boards, console, view)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _show(board: Board, console: Console, view: View) -> None:
    console.print(Text(visible(board.question), style="bold"))
    if board.headline:
        console.print(Text(visible(board.headline)))
    console.print()
    columns = _print_tables(board, console, view)
    for reason, names in board.reasons:
        # the headline gives a reason that all rows share
        if view.all_notes or visible(reason) not in visible(board.headline):
            listed = _listed(names, len(names) if view.all_notes else NAMED)
            _print_note(console, f"– {listed}", visible(reason, LONGEST_REASON))
    for part in board.parts:
        console.print(Text(f"\n{visible(part.title)}", style="bold"))
        _print_tables(part, console, view, keep=True)
    if board.parts:
        console.print()
    for note in view.notes(board):
        _print_note(console, note.topic, visible(note.text), "yellow" if note.warning else "dim")
    if more := view.more(board, columns):
        console.print(Text(more, style="dim"))


def _print_tables(board: Board, console: Console, view: View, *, keep: bool = False) -> int:
    """Prints as many tables as the columns need; returns how many columns they show. keep: hide no column."""
    chosen = layout(board, console.width, view.places(board), keep=keep or bool(view.columns))
    for at, columns in enumerate(chosen.tables if board.rows else ()):
        if at:
            console.print()
        console.print(_table(board, chosen, columns))
    return sum(map(len, chosen.tables))


def _table(board: Board, chosen: Layout, columns: Sequence[int]) -> Table:
    """The columns: names to the left, numbers to the right, an empty line between kinds of rows."""
    # the rule below the header is the only line
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    # where nothing is ranked, that column would be empty
    if board.ranked:
        table.add_column("rank", no_wrap=True)
    table.add_column("variant", overflow="fold", max_width=chosen.names)
    for at in columns:
        is_sentence = _is_sentence(board, at)
        table.add_column(
            Text(_heading(board, at, chosen.form, chosen.short)),
            justify="left" if is_sentence else "right",
            no_wrap=not is_sentence,
        )
    before = None
    for kind, row in board.rows:
        if before not in (None, kind):
            table.add_section()
        before = kind
        dim = "dim" if kind == "baseline" else ""
        cells = [Text(visible(row.name), style=dim or "bold")]
        for at in columns:
            text = visible(row.entries[at].shown(chosen.form))
            is_conclusion = board.columns[at].name == VERDICT
            cells.append(Text(text, style=(_STYLES.get(text.partition(" ")[0], "") if is_conclusion else "") or dim))
        places = [Text(row.place or ("·" if kind == "baseline" else "–"), style=dim)] * bool(board.ranked)
        table.add_row(*places, *cells)
    return table


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the columns of each table, of which there is one where a board fits.

    `form`: how much of a cell is shown; `short`: with short headings; `names`: the width at which names fold.
    """

    tables: tuple[tuple[int, ...], ...]
    form: Form
    short: bool
    names: int


def layout(board: Board, width: int, wanted: Sequence[int], *, keep: bool) -> Layout:
    """Fits the wanted columns: intervals get short, then headings, then intervals go, then names fold.

    What still does not fit is hidden, the least important column first; with `keep`, and for the columns that are
    never hidden, it stands in another table.
    """
    rows = [row for _, row in board.rows]
    places = max([4, *(cell_len(row.place) for row in rows)]) + GAP if board.ranked else 0
    names = min(LONGEST_NAME, max([7, *(cell_len(visible(row.name)) for row in rows)]))
    importance = {at: board.columns[at].importance for at in wanted}
    widths: dict[int, int] = {}
    form: Form = "full"
    short, needed = False, 0
    for form, short in _STEPS:
        widths = {at: GAP + _width(board, at, form, short) for at in wanted}
        # intervals are worth more than the columns that are not always kept
        needed = sum(widths[at] for at in wanted if importance[at] <= (KEPT if short else CHIEF))
        if places + names + needed <= width:
            break
    else:
        names = min(names, max(SHORTEST_NAME, width - places - needed))
    room = width - places - names
    tables: list[list[int]] = [[]]
    used, is_full = 0, False
    for at in sorted(wanted, key=importance.__getitem__):
        if is_full or used + widths[at] > room:
            if not keep and importance[at] > KEPT:
                is_full = True
                continue
            if tables[-1]:
                tables.append([])
                used = 0
        tables[-1].append(at)
        used += widths[at]
    return Layout(tuple(tuple(sorted(found)) for found in tables), form, short, names)


def _width(board: Board, at: int, form: Form, short: bool) -> int:
    texts = [visible(row.entries[at].shown(form)) for _, row in board.rows]
    longest = max(map(cell_len, [_heading(board, at, form, short), *texts]))
    return min(longest, SENTENCE) if _is_sentence(board, at) else longest


def _is_sentence(board: Board, at: int) -> bool:
    return board.columns[at].name == VERDICT


def _heading(board: Board, at: int, form: Form, short: bool) -> str:
    """The heading of the column; where there is no room for intervals, none for the arrow either."""
    column = board.columns[at]
    title = column.short or column.title if short else column.title
    return visible(title if form == "bare" else title + column.arrow)


def _print_note(console: Console, topic: str, text: str, style: str = "dim") -> None:
    console.print(Text.assemble((visible(topic), f"{style} bold"), (f": {text}" if text else "", style)))


def _listed(names: Sequence[str], most: int) -> str:
    rest = len(names) - most
    return ", ".join(visible(name, LONGEST_REASON) for name in names[:most]) + (f" and {rest} more" if rest > 0 else "")
