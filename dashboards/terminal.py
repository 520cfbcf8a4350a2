"""Terminal: a Board as tables that fit 80 columns and use 200."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.board.board import Board, Column, Row, TableCell
from .escape import visible

GAP = 2
CHIEF = 3
LONGEST_NAME = 32
SENTENCES = "in_words"
"""The column whose texts stand below a table in which there is no room for them."""

LONGEST_REASON = 300

_STYLES = {"better": "green", "worse": "red"}


def show(boards: Sequence[Board], console: Console) -> None:
    """Prints the boards at the console's width."""
    for at, board in enumerate(boards):
        if at:
            console.print()
        _show(board, console)


def render(boards: Sequence[Board], width: int = 120) -> str:
    """The boards as plain text of that width, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as capture:
        show(boards, console)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _show(board: Board, console: Console) -> None:
    console.print(Text(visible(board.title), style="bold"))
    console.print(Text(visible(board.question), style="italic"))
    console.print()
    chosen = layout(board, console.width)
    if board.ranked or board.unranked or board.baselines:
        console.print(_table(board, chosen))
    for row in (*board.unranked, *board.baselines):
        if row.reason:
            _note(console, f"– {_name(row)}", visible(row.reason, LONGEST_REASON), "dim")
    if board.baselines:
        _note(console, "· trivial", "predictors without trained attention, for scale", "dim")
    for part in board.parts:
        console.print()
        console.print(Text(visible(part.title), style="bold"))
        fitting = layout(part, console.width)
        console.print(_table(part, fitting, placed=False))
        for row in (*part.unranked, *part.baselines):
            _say(console, part, row, fitting)
    if board.parts:
        console.print()
    hidden = {board.columns[i].name for i in chosen.hidden}
    for footnote in board.footnotes:
        if footnote.column in hidden:
            continue
        _note(console, footnote.topic, visible(footnote.text), "yellow" if footnote.warning else "dim")
    if chosen.hidden or chosen.brief:
        titles = ", ".join(board.columns[i].title for i in chosen.hidden)
        more = " and ".join(filter(None, [titles, "intervals" if chosen.brief else ""]))
        _note(console, "left out", f"{more}: widen the terminal, or see --format markdown", "dim")


def _table(board: Board, chosen: Layout, *, placed: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    if placed:
        table.add_column("rank", no_wrap=True)
    table.add_column("variant", no_wrap=True, overflow="ellipsis")
    for i in chosen.shown:
        table.add_column(_heading(board.columns[i]), justify="right", no_wrap=True, overflow="ellipsis")
    group = None
    for row in board.ranked:
        if group not in (None, row.group):
            table.add_section()
        group = row.group
        _add(table, board, row, row.place if placed else None, chosen)
    for kind, unplaced in (("–", board.unranked), ("·", board.baselines)):
        if unplaced:
            table.add_section()
        for row in unplaced:
            _add(table, board, row, kind if placed else None, chosen, style="dim" if kind == "·" else "")
    return table


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a board fit beside rank and name, and whether only with brief texts."""

    shown: tuple[int, ...]
    hidden: tuple[int, ...]
    brief: bool


def layout(board: Board, width: int) -> Layout:
    """The most important columns stay; texts are brief where the chief columns would not fit in full.

    Columns without any entry are neither shown nor hidden.
    """
    rows = [*board.ranked, *board.unranked, *board.baselines]
    filled = [i for i in range(len(board.columns)) if any(row.entries[i].text for row in rows)]
    chief = {i for i in filled if board.columns[i].importance <= CHIEF}
    names = max([4, *(cell_len(row.place) for row in rows)]) + GAP + max([7, *(cell_len(_name(row)) for row in rows)])
    kept: set[int] = set()
    for brief in (False, True):
        kept, used = set(), names
        for i in sorted(filled, key=lambda i: board.columns[i].importance):
            texts = [_heading(board.columns[i]), *(_entry(row.entries[i], brief) for row in rows)]
            used += GAP + max(map(cell_len, texts))
            if used > width:
                break
            kept.add(i)
        if chief <= kept:
            break
    return Layout(tuple(i for i in filled if i in kept), tuple(i for i in filled if i not in kept), brief)


def _add(table: Table, board: Board, row: Row, place: str | None, chosen: Layout, style: str = "") -> None:
    """`place`: None in a table without places."""
    cells = [*([] if place is None else [Text(place)]), Text(_name(row), style=style or "bold")]
    for i in chosen.shown:
        text = _entry(row.entries[i], chosen.brief)
        colour = _STYLES.get(text.partition(" ")[0], "") if board.columns[i].name == "verdict" else ""
        cells.append(Text(text, style=style or colour))
    table.add_row(*cells)


def _note(console: Console, topic: str, text: str, style: str) -> None:
    line = Text(topic, style=f"{style} bold")
    if text:
        line.append(f": {text}", style=style)
    console.print(line)


def _heading(column: Column) -> str:
    arrow = {"higher": " ↑", "lower": " ↓"}.get(column.better, "")
    return column.title + arrow


def _say(console: Console, board: Board, row: Row, chosen: Layout) -> None:
    """What the columns of sentences that found no room say of the row."""
    for i in chosen.hidden:
        if board.columns[i].name == SENTENCES and row.entries[i].text:
            _note(console, _name(row), visible(row.entries[i].text), "dim")


def _name(row: Row) -> str:
    name = visible(row.name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _entry(entry: TableCell, brief: bool) -> str:
    mark = f" {entry.note}" if len(entry.note) == 1 else ""
    return visible((brief and entry.brief) or entry.text) + mark
