"""`attnbench leaderboard`: what the Records of a results folder say, board by board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..board.board import Board
    from ..store.store import Store
from ..board.select import read_store, scored
from .options import Fidelity, Format, Machine, Margin, Mode, Preset, Results, Selection, Task


def leaderboard(
    results: Results = Path("results/local"),
    task: Task = None,
    preset: Preset = None,
    selection: Selection = None,
    fidelity: Fidelity = None,
    machine: Machine = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Average over the tasks of this suite.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show what papers reported beside ours; never ranked with ours.")
    ] = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="Cost over lengths instead of quality.")] = False,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="Which time a board of cost alone shows (default: each that was taken)."),
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to show it.")] = Format.RICH,
    margin: Margin = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write, or an existing folder: then one file a board.")
    ] = None,
) -> None:
    """Show who is right most often and what it costs, with intervals, from the Records of past runs."""
    filters = {"task": task, "preset": preset, "selection": selection, "fidelity": fidelity, "machine": machine}
    boards = scored(
        *read_store(store_of(results)), filters, margin,
        suite=tasks_of(suite), lengths=lengths, mode=mode.value if mode else None,
    )  # fmt: skip
    if published:
        from ..board.published import beside

        boards = beside(boards, suite)
    show(boards, format, out)


def tasks_of(suite: str | None) -> tuple[str, tuple[str, ...]] | None:
    """The name of a suite and its tasks; raises SelectionError for a name that is none."""
    from ..plan.suite import load_suite

    return None if suite is None else (suite, tuple(str(task) for task in load_suite(suite).tasks))


def show(boards: list[Board], format: Format, out: Path | None) -> None:
    """The boards in that format, to the terminal or a file."""
    from ...dashboards import csv_json as tables
    from ...dashboards import markdown, terminal

    if out is not None and out.is_dir():
        for board in boards:
            show([board], format, out / file_name(board, format))
        return
    if format is Format.RICH and out is None:
        from rich.console import Console

        terminal.show(boards, Console(highlight=False))
        return
    render = {
        Format.RICH: terminal.render,
        Format.MARKDOWN: markdown.render,
        Format.CSV: tables.to_csv,
        Format.JSON: tables.to_json,
        Format.LATEX: tables.to_latex,
    }[format]
    emit(render(boards), out)


def file_name(board: Board, format: Format) -> str:
    """The file of a board in a folder of boards, from its name."""
    import re

    suffix = {Format.RICH: "txt", Format.MARKDOWN: "md", Format.LATEX: "tex"}.get(format, format.value)
    return re.sub(r"[^A-Za-z0-9.=]+", "-", board.name).strip("-")[:150] + f".{suffix}"


def store_of(results: Path) -> Store:
    """The store of that folder, which tells what it tells on standard error."""
    from ..store.store import Store

    return Store(results, notice=lambda text: typer.echo(text, err=True))


def emit(text: str, out: Path | None) -> None:
    """Writes to the file, or to the terminal; raises StoreError where the file cannot be written."""
    from ..core.errors import StoreError

    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}; name another file with --out") from None
