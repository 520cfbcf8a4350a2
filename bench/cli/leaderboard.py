"""`attnbench leaderboard`: the boards of a results folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import command
from .options import FILTERS, Columns, Format, Mode, Notes, Published, ShownAs, named, sharing
from .output import console, warn, write

if TYPE_CHECKING:
    from ..board.board import Board
    from ..core.errors import StoreError

FILE_WIDTH = 120
"""Columns of a board as text in a file."""


@command("Read", "attnbench leaderboard --task lra-text")
@sharing(FILTERS)
def leaderboard(
    suite: Annotated[str | None, typer.Option(help="Average over the tasks of this suite instead.")] = None,
    with_suites: Annotated[
        str, typer.Option(metavar="NAMES", help="Also average over the tasks of these suites, with commas between.")
    ] = "",
    published: Published = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="Show cost over lengths instead of quality.")] = False,
    mode: Annotated[
        Mode | None, typer.Option(help="Time that a board of cost alone shows (default: every one measured).")
    ] = None,
    notes: Notes = False,
    columns: Columns = "",
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
    from ..api import boards as api

    if out is not None and not out.is_dir():
        refuse_unwritable(out)
    boards = []
    for name in [suite, *(name.strip() for name in with_suites.split(",") if name.strip())]:
        boards += api.boards(
            suite=name, lengths=lengths, mode=mode.value if mode else None, published=published, notice=warn, **filters,
        )  # fmt: skip
    show(boards, format, out, all_notes=notes, columns=columns)


def show(
    boards: list[Board],
    format: Format = Format.RICH,
    out: Path | None = None,
    *,
    all_notes: bool = False,
    columns: str = "",
    command: str = "leaderboard",
) -> None:
    """Prints the boards in that format, or writes them to `out`; the rest as in `View`.

    Raises SelectionError for a column that no board has.
    """
    from functools import partial

    from ...dashboards import csv_json, latex, markdown, terminal
    from ...dashboards.view import View
    from ..core.errors import SelectionError

    if columns and format in (Format.CSV, Format.JSON):
        raise SelectionError(f"expected --format rich, markdown or latex beside --columns: {format} has all columns")
    view = View(all_notes=all_notes, columns=columns, command=command)
    if unknown := view.unknown(boards):
        known = dict.fromkeys(column.name for board in boards for column in board.columns)
        raise SelectionError(f"no column named {unknown[0]!r}; there are: {', '.join(known)}; or `all`")
    if format is Format.RICH and out is None and sys.stdout.isatty():
        terminal.show(boards, console(), view)
        return
    renderers: dict[Format, Callable[[Sequence[Board]], str]] = {
        Format.RICH: partial(terminal.render, width=console().width if out is None else FILE_WIDTH, view=view),
        Format.MARKDOWN: partial(markdown.render, view=view),
        Format.CSV: csv_json.to_csv,
        Format.JSON: csv_json.to_json,
        Format.LATEX: partial(latex.to_latex, view=view),
    }
    render = renderers[format]
    if out is None:
        write(render(boards))
    elif out.is_dir():
        for board in boards:
            replace_text(out / file_name(board, format), render([board]))
    else:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            # a person who names a link or a device means what is behind it
            out.write_text(render(boards), encoding="utf-8")
        except OSError as error:
            raise _unwritable(out, error) from None


def file_name(board: Board, format: Format) -> str:
    """The file of a board in a folder of boards, from its name."""
    import re

    suffix = {Format.RICH: "txt", Format.MARKDOWN: "md", Format.LATEX: "tex"}.get(format, format.value)
    return re.sub(r"[^A-Za-z0-9.=]+", "-", board.name).strip("-")[:150] + f".{suffix}"


def replace_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Writes the file; a link in its place is replaced. Without `follow`, its folder must be no link either.

    Raises StoreError where it cannot be written.
    """
    from ..core.files import replacing

    try:
        with replacing(path, follow=follow) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise _unwritable(path, error) from None


def refuse_unwritable(path: Path) -> None:
    """Raises StoreError where the file could not be written, before anything is computed for it; makes nothing."""
    import tempfile

    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if there != path:
            with tempfile.TemporaryFile(dir=there) as probe:
                probe.write(b"\0" * 4096)
        elif path.is_dir() or not os.access(path, os.W_OK):
            code = errno.EISDIR if path.is_dir() else errno.EACCES
            raise OSError(code, os.strerror(code))
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> StoreError:
    from ..core.errors import StoreError

    return StoreError(f"cannot write {path}: {error.strerror or error}; name another file with --out")
