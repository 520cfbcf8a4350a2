"""`attnbench leaderboard`: the boards of a results folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import FILTERS, Format, Mode, Notes, Published, ShownAs, named, sharing
from .output import warn, write

if TYPE_CHECKING:
    from ..board.board import Board


@sharing(FILTERS)
def leaderboard(
    suite: Annotated[str | None, typer.Option(help="Average over the tasks of this suite.")] = None,
    published: Published = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="Show cost over lengths instead of quality.")] = False,
    mode: Annotated[
        Mode | None, typer.Option(help="Time that a board of cost alone shows (default: every one measured).")
    ] = None,
    notes: Notes = False,
    format: ShownAs = Format.RICH,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            parser=named,
            help="File to write, or an existing folder for one file a board.",
        ),
    ] = None,
    **filters: Any,
) -> None:
    """Rank variants by quality, with their cost and intervals, from the Records of past runs."""
    from .. import api

    boards = api.boards(
        suite=suite, lengths=lengths, mode=mode.value if mode else None, published=published, notice=warn, **filters
    )
    show(boards, format, out, all_notes=notes)


def show(
    boards: list[Board],
    format: Format = Format.RICH,
    out: Path | None = None,
    *,
    all_notes: bool = False,
    command: str = "leaderboard",
) -> None:
    """The boards in that format, to the terminal or a file. `all_notes`: where they are drawn as text, too.

    `command`: the one whose option shows all notes.
    """
    from functools import partial

    from ...dashboards import csv_json, latex, markdown, terminal

    if out is not None and out.is_dir():
        for board in boards:
            show([board], format, out / file_name(board, format), all_notes=all_notes, command=command)
        return
    if format is Format.RICH and out is None:
        from .rich_console import console

        terminal.show(boards, console(), all_notes=all_notes, command=command)
        return
    render: dict[Format, Callable[[Sequence[Board]], str]] = {
        Format.RICH: partial(terminal.render, all_notes=all_notes, command=command),
        Format.MARKDOWN: markdown.render,
        Format.CSV: csv_json.to_csv,
        Format.JSON: csv_json.to_json,
        Format.LATEX: latex.to_latex,
    }
    emit(render[format](boards), out)


def file_name(board: Board, format: Format) -> str:
    """The file of a board in a folder of boards, from its name."""
    import re

    suffix = {Format.RICH: "txt", Format.MARKDOWN: "md", Format.LATEX: "tex"}.get(format, format.value)
    return re.sub(r"[^A-Za-z0-9.=]+", "-", board.name).strip("-")[:150] + f".{suffix}"


def emit(text: str, out: Path | None) -> None:
    """Writes to the file, or to the terminal; raises StoreError where the file cannot be written."""
    from ..core.errors import StoreError

    if out is None:
        write(text)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}; name another file with --out") from None
