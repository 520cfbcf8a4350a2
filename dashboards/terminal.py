"""Terminal: a Board as tables that fit 80 columns and use 200."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.board.board import Board, Row
from .escape import visible

GAP = 2
CHIEF = 3
"""Columns up to this importance are shown in a brief form before any of them is hidden."""

LONGEST_NAME = 32
VERDICT = "verdict"
"""The column of conclusions: coloured in a board; below a part in which there is no room for it."""

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
    console.print(Text(visible(board.question), style="italic"), end="\n\n")
    chosen = layout(board, console.width)
    if board.rows:
        console.print(_table(board, chosen))
    for _, row in board.rows:
        if row.reason:
            _note(console, f"– {_name(row)}", visible(row.reason, LONGEST_REASON))
    if board.baselines:
        _note(console, "· baselines", "predictors without trained attention, for scale")
    for part in board.parts:
        fitting = layout(part, console.width)
        console.print(Text(f"\n{visible(part.title)}", style="bold"))
        console.print(_table(part, fitting, with_rank=False))
        for name, text in _hidden_verdicts(part, fitting):
            _note(console, name, text)
    if board.parts:
        console.print()
    hidden = [board.columns[at] for at in chosen.hidden]
    for footnote in board.footnotes:
        if footnote.column not in {column.name for column in hidden}:
            _note(console, footnote.topic, visible(footnote.text), "yellow" if footnote.warning else "dim")
    if hidden or chosen.brief:
        titles = [*(column.title for column in hidden), *(["intervals"] if chosen.brief else [])]
        _note(console, "not shown", f"{', '.join(titles)}; widen the terminal, or use --format markdown")


def _table(board: Board, chosen: Layout, *, with_rank: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    if with_rank:
        table.add_column("rank", no_wrap=True)
    table.add_column("variant", no_wrap=True, overflow="ellipsis")
    for at in chosen.shown:
        table.add_column(board.columns[at].heading, justify="right", no_wrap=True, overflow="ellipsis")
    before = None
    for kind, row in board.rows:
        if before not in (None, (kind, row.group)):
            table.add_section()
        before = kind, row.group
        style = "dim" if kind == "baseline" else ""
        rank = row.place or ("·" if kind == "baseline" else "–")
        cells = [*[Text(rank)] * with_rank, Text(_name(row), style=style or "bold")]
        for at in chosen.shown:
            text = visible(row.entries[at].shown(chosen.brief))
            colour = _STYLES.get(text.partition(" ")[0], "") if board.columns[at].name == VERDICT else ""
            cells.append(Text(text, style=style or colour))
        table.add_row(*cells)
    return table


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the columns that fit beside rank and name, and of those that do not; `brief`: only with brief texts."""

    shown: tuple[int, ...]
    hidden: tuple[int, ...]
    brief: bool


def layout(board: Board, width: int) -> Layout:
    """The most important columns stay; texts are brief where the chief columns do not fit in full.

    Columns without any entry are neither shown nor hidden.
    """
    rows, filled = [row for _, row in board.rows], board.filled
    chief = {at for at in filled if board.columns[at].importance <= CHIEF}
    names = max([4, *(cell_len(row.place) for row in rows)]) + GAP + max([7, *(cell_len(_name(row)) for row in rows)])
    kept: set[int] = set()
    for brief in (False, True):
        kept, used = set(), names
        for at in sorted(filled, key=lambda at: board.columns[at].importance):
            texts = [board.columns[at].heading, *(visible(row.entries[at].shown(brief)) for row in rows)]
            used += GAP + max(map(cell_len, texts))
            if used > width:
                break
            kept.add(at)
        if chief <= kept:
            break
    return Layout(tuple(at for at in filled if at in kept), tuple(at for at in filled if at not in kept), brief)


def _hidden_verdicts(board: Board, chosen: Layout) -> Iterator[tuple[str, str]]:
    """Names and conclusions of the rows, where there was no room for that column."""
    for at in chosen.hidden:
        if board.columns[at].name == VERDICT:
            yield from ((_name(row), visible(row.entries[at].text)) for _, row in board.rows if row.entries[at].text)


def _note(console: Console, topic: str, text: str, style: str = "dim") -> None:
    console.print(Text.assemble((topic, f"{style} bold"), (f": {text}" if text else "", style)))


def _name(row: Row) -> str:
    name = visible(row.name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
