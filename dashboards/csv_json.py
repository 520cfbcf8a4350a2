"""CSV and JSON: Boards for machines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from ..bench.board.board import Board, TableCell
from .escape import in_csv

SCHEMA = 1


def to_csv(boards: Sequence[Board]) -> str:
    """One line per row of every board: group, ranks, then value (text where there is none), low and high by column.

    The parts of a board follow it, under its title and theirs.
    """
    boards = list(with_parts(boards))
    names = list(dict.fromkeys(column.name for board in boards for column in board.columns))
    header = ["board", "group", "rank_first", "rank_last", "variant", "reason"]
    header += [f"{in_csv(name)}{end}" for name in names for end in ("", "_low", "_high")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for board in boards:
        for group, row in board.rows:
            cells = {column.name: cell for column, cell in zip(board.columns, row.entries, strict=True)}
            shown = (_numbers(cells.get(name, TableCell())) for name in names)
            numbers = [number for own in shown for number in own]
            named = [in_csv(board.title), group, row.first, row.last, in_csv(row.name), in_csv(row.reason)]
            writer.writerow([*named, *numbers])
    return file.getvalue()


def to_json(boards: Sequence[Board]) -> str:
    """Every Board in full, entries keyed by their column."""
    return json.dumps({"schema": SCHEMA, "boards": [_board(board) for board in boards]}, indent=1) + "\n"


def with_parts(boards: Sequence[Board]) -> Iterator[Board]:
    """The boards, each followed by its parts."""
    for board in boards:
        yield board
        for part in board.parts:
            yield replace(part, title=f"{board.title}: {part.title}", question=part.question)


def _numbers(cell: TableCell) -> tuple[float | str | None, ...]:
    return in_csv(cell.text) if cell.value is None else cell.value, cell.low, cell.high


def _board(board: Board) -> dict[str, object]:
    names = [column.name for column in board.columns]
    rows: dict[str, list[dict[str, object]]] = {"ranked": [], "unranked": [], "baseline": []}
    for group, row in board.rows:
        entries = {name: asdict(entry) for name, entry in zip(names, row.entries, strict=True)}
        rows[group].append(asdict(row) | {"entries": entries})
    return {
        "name": board.name,
        "title": board.title,
        "question": board.question,
        "headline": board.headline,
        "columns": [asdict(column) for column in board.columns],
        "ranked": rows["ranked"],
        "unranked": rows["unranked"],
        "baselines": rows["baseline"],
        "notes": [asdict(note) for note in board.notes],
        "parts": [_board(part) for part in board.parts],
    }
