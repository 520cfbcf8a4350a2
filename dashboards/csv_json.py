"""CSV and JSON: Boards for machines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from ..bench.board.board import Board
from .escape import in_csv

SCHEMA = 2


def to_csv(boards: Sequence[Board]) -> str:
    """The rows of every board, as `Board.to_pandas` has them, after its title; its parts follow under both titles.

    All text is in quotes, so that no spreadsheet finds a formula behind a separator of its own.
    """
    import pandas as pd

    frames = []
    for board in with_parts(boards):
        frame = board.to_pandas()
        frame.insert(0, "board", board.title)
        frames.append(frame)
    if not frames:
        return ""
    # of boards with other columns, each row is empty in the columns that its board lacks
    whole = pd.concat([frame.astype(object) for frame in frames], ignore_index=True)
    safe = whole.map(lambda value: in_csv(value) if isinstance(value, str) else value).rename(columns=in_csv)
    return str(safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"))


def to_json(boards: Sequence[Board]) -> str:
    """Every Board in full, entries keyed by their column."""
    return json.dumps({"schema": SCHEMA, "boards": [_board(board) for board in boards]}, indent=1) + "\n"


def with_parts(boards: Sequence[Board]) -> Iterator[Board]:
    """The boards, each followed by its parts."""
    for board in boards:
        yield board
        for part in board.parts:
            yield replace(part, title=f"{board.title}: {part.title}")


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
