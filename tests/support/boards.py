"""What tests ask of a Board: rows and cells by name, notes by topic, and the whole as plain values."""

from __future__ import annotations

import re
from typing import Any

from attnbench.bench.board.board import Board, Note, Row, TableCell


def row(board: Board, name: str) -> Row:
    return next(row for _, row in board.rows if row.name == name)


def entry(board: Board, name: str, column: str) -> TableCell:
    return board.cell(row(board, name), column)


def notes(board: Board, topic: str) -> list[Note]:
    return [note for note in board.notes if note.topic == topic]


def text(board: Board, topic: str) -> str:
    """The notes of that topic, one after the other."""
    return " ".join(note.text for note in notes(board, topic))


def plain(board: Board) -> dict[str, Any]:
    """Every value of a board; of its sentences the names and numbers in them, so that a comma changes nothing."""
    return {
        "name": board.name,
        "headline": facts(board.headline, board),
        "learned": board.learned,
        "columns": {column.name: column.shown for column in board.columns},
        "rows": {
            row.name: {
                "kind": kind, "first": row.first, "last": row.last, "group": row.group, "reason": bool(row.reason),
                "records": len(row.records),
                "cells": {
                    column.name: [cell.text, cell.value, cell.low, cell.high, cell.note]
                    for column, cell in zip(board.columns, row.entries, strict=True)
                    if cell != TableCell()
                },
            }
            for kind, row in board.rows
        },
        "notes": [[note.topic, note.kind, note.column, facts(note.text, board)] for note in board.notes],
        "shown_notes": len(board.shown_notes),
        "parts": [plain(part) for part in board.parts],
    }  # fmt: skip


def facts(sentence: str, board: Board) -> list[str]:
    """The numbers in a sentence and the names of the board's rows, in the order in which they stand there."""
    names = sorted((row.name for _, row in board.rows), key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, names), r"[+−-]?\d[\d,.]*\d|\d"]), sentence)
