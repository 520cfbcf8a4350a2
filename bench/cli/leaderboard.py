"""`attnbench leaderboard`: what the Records of a results folder say, board by board."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .artifacts import StoredCurves, StoredPredictions, StoredSets

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..board import Board
    from ..frame import Frame
    from ..question import Question
    from ..store import Store
    from ..trials import Predictions

Results = Annotated[Path, typer.Option("--results", help="Folder that holds the Records.")]
Machine = Annotated[str | None, typer.Option("--machine", help="Machine whose speeds to show.")]
Selection = Annotated[
    str | None, typer.Option("--selection", help="Split that chose the checkpoint: validation or test.")
]
Fidelity = Annotated[str | None, typer.Option("--fidelity", help="Only official, regenerated or surrogate data.")]
Task = Annotated[str | None, typer.Option("--task", help="Only these tasks.")]
Preset = Annotated[str | None, typer.Option("--preset", help="Only these presets.")]
Margin = Annotated[
    float | None,
    typer.Option(
        help="Points worse than the reference that still count as no worse; unless said: accuracy 1, BLEU 0.5, "
        "bits per character 0.02.",
        min=0.0,
        show_default=False,
    ),
]


class Mode(StrEnum):
    STEP = "step"
    FORWARD = "forward"
    DECODE = "decode"


class Format(StrEnum):
    RICH = "rich"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    LATEX = "latex"


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
    boards = scored(store_of(results), filters, margin, suite=suite, lengths=lengths, mode=mode)
    if published:
        from ..published import beside

        boards = beside(boards, suite)
    show(boards, format, out)


def scored(
    store: Store,
    filters: dict[str, str | None],
    margin: float | None,
    *,
    suite: str | None = None,
    lengths: bool = False,
    mode: Mode | None = None,
    reader: Callable[[Store], tuple[Frame, StoredPredictions]] | None = None,
) -> list[Board]:
    """The boards that are asked for, scored before or now; `reader`: `read_store`, or what keeps what it gives."""
    from ..shelf import boards_of
    from ..suite import load_suite

    asked = [filters, repr(load_suite(suite)) if suite is not None else None, lengths, mode and mode.value, margin]
    return boards_of(
        store, asked, lambda: _boards(*(reader or read_store)(store), filters, suite, lengths, mode, margin)
    )


def _boards(
    frame: Frame,
    predictions: StoredPredictions,
    filters: dict[str, str | None],
    suite: str | None,
    lengths: bool,
    mode: Mode | None,
    margin: float | None,
) -> list[Board]:
    from ..question import Filter, questions
    from ..taskboard import board_for_task

    found = questions(frame, Filter(**filters))
    if suite is not None:
        return [_board_for_suite(frame, suite, found, predictions)]
    if lengths:
        return _boards_for_lengths(frame, found, mode, 2)
    trained = [question for question in found if question.runs(frame, "train", "baseline")]
    curves, sets = StoredCurves(predictions.store), StoredSets(predictions.store)
    boards = [
        board_for_task(frame, question, predictions=predictions, curves=curves, sets=sets, margin=margin)
        for question in trained
    ]
    untrained = sorted(set(found) - set(trained))
    return boards + _boards_for_lengths(frame, untrained, mode, 1)


def show(boards: list[Board], format: Format, out: Path | None) -> None:
    """The boards in that format, to the terminal or a file."""
    from ...dashboards import markdown, tables, terminal

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


def _board_for_suite(frame: Frame, name: str, found: list[Question], predictions: Predictions) -> Board:
    from dataclasses import replace

    from ..suite import load_suite
    from ..suiteboard import board_for_suite

    tasks = tuple(str(task) for task in load_suite(name).tasks)
    judged = [question for question in found if question.task in tasks and question.runs(frame, "train", "baseline")]
    # accuracy may come from any machine
    of_suite = {replace(question, machine="") for question in judged}
    return board_for_suite(frame, name, sorted(of_suite), predictions=predictions, wanted=tasks)


def _boards_for_lengths(frame: Frame, found: list[Question], mode: Mode | None, least: int) -> list[Board]:
    from ..errors import SelectionError
    from ..lengthboard import boards_over_lengths

    boards = boards_over_lengths(frame, found, mode.value if mode else None, least)
    if not boards and least > 1:
        raise SelectionError("no task was timed at two lengths or more; run one with a range such as [length=256..4k]")
    return boards


def read(results: Path) -> tuple[Frame, StoredPredictions]:
    """The Records of a results folder; raises StoreError, saying what to run, where there are none."""
    return read_store(store_of(results))


def store_of(results: Path) -> Store:
    """The store of that folder, which tells what it tells on standard error."""
    from ..store import Store

    return Store(results, notice=lambda text: typer.echo(text, err=True))


def read_store(store: Store) -> tuple[Frame, StoredPredictions]:
    """As `read`, of a store at hand."""
    from ..cache import frame_of_store
    from ..errors import StoreError

    frame = frame_of_store(store)
    if frame.cells.empty:
        raise StoreError(
            f"no Records in {store.root}{_elsewhere()}; make some with "
            "`attnbench run --variants rela,entmax15 --task lra-text`, or name a folder that has some with --results"
        )
    return frame, StoredPredictions(store)


def _elsewhere() -> str:
    """Folders of Records that a person may have meant, for an error."""
    found = sorted({str(path.parent.parent) for path in Path("results").glob("**/records/*.jsonl")})
    return f" (there are some in {', '.join(found[:3])})" if found else ""


def emit(text: str, out: Path | None) -> None:
    """Writes to the file, or to the terminal; raises StoreError where the file cannot be written."""
    from ..errors import StoreError

    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}; name another file with --out") from None
