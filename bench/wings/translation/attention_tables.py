"""Attention tables: statistics of each kind of attention in a translation model, and how well it aligns words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....tasks.translation.problem import KINDS
from ...board.board import Board, Column, Note, Row, TableCell
from ...board.cells import EMPTY, mean_cell, number_cell
from ...board.task_context import finished_runs
from ...core.cell import REFERENCE
from ...score.key import BoardKey
from ...stats.format import percent
from ...store.rows import ResultRow
from ...store.table import ResultTable

ATTENTION = (
    "means over layers and heads on test pairs with the target given; head diversity: over queries that two heads "
    f"answer or more; kinds of attention that the task does not replace are {REFERENCE}'s"
)

ALIGNMENT = (
    "of cross attention with the target given; best head: chosen on the same sentences; shifted: by the step that "
    "reads the word; diagonal: links at the same relative position; layers and heads count from 0; gold sentences are "
    "often of another domain than the training's"
)

AER = "alignment_error_rate"

# metric, title, description, form and `where` of each statistic by kind of attention: the one place to add one
_STATISTICS: tuple[tuple[str, str, str, Callable[[float], str], dict[str, Any]], ...] = (
    ("sparsity", "zeros", "share of allowed weights that are exactly zero", percent, {}),
    ("block_sparsity", "zero 16 × 16", "share of 16 × 16 blocks without a positive weight", percent, {"block": 16}),
    ("null_rate", "null", "share of queries that attend to nothing", percent, {}),
    ("entropy", "entropy", "entropy of the weights; 1: uniform", "{:.2f}".format, {}),
    ("head_diversity", "head diversity",
     "generalised Jensen-Shannon divergence between the heads of a layer, in nats; 0: all alike", "{:.3f}".format, {}),
)  # fmt: skip

_HEADS = {"best head": "any head", "averaged weights": "the averaged heads of any layer"}
_ALIGNMENTS = tuple((how, shift) for shift in (False, True) for how in _HEADS)


def attention_boards(table: ResultTable, board_key: BoardKey) -> list[Board]:
    """The boards by kind of attention, and by alignment; each is left out where no Record has such numbers."""
    grouped = finished_runs(table, board_key)
    boards = (_by_kind(table, board_key, grouped), _alignment(table, board_key, grouped))
    return [board for board in boards if board.unranked]


def attention_notes(boards: Sequence[Board]) -> Iterator[Note]:
    """The conventions behind the numbers of `attention_boards`."""
    names = {column.name for board in boards for column in board.columns}
    if "attention" in names:
        yield Note(topic="attention", kind="method", text=ATTENTION)
    if "best_head" in names:
        yield Note(topic="AER", kind="method", text=ALIGNMENT)


def _by_kind(table: ResultTable, board_key: BoardKey, grouped: Mapping[str, Sequence[ResultRow]]) -> Board:
    columns = [Column(name="attention", title="attention", importance=0, description="where in the model")]
    columns += [
        Column(name=name, title=title, importance=at, description=description)
        for at, (name, title, description, *_) in enumerate(_STATISTICS, start=1)
    ]
    rows = {
        (variant, kind): [
            mean_cell(table.values(name, [run.at for run in runs], attention=kind, **where), words)
            for name, _, _, words, where in _STATISTICS
        ]
        for variant, runs in grouped.items()
        for kind in KINDS
    }
    named = [((variant, TableCell(text=kind)), cells) for (variant, kind), cells in rows.items()]
    return _board(
        board_key, "attention", "Attention statistics by kind", columns,
        [Row(name=variant, entries=(kind, *cells)) for (variant, kind), cells in named if any(c.text for c in cells)],
    )  # fmt: skip


def _alignment(table: ResultTable, board_key: BoardKey, grouped: Mapping[str, Sequence[ResultRow]]) -> Board:
    columns = [
        Column(name=f"{'shifted_' if shift else ''}{how.replace(' ', '_')}", better="lower", importance=at,
               title=f"{how}{', shifted' if shift else ''}", description=f"lowest AER of {_HEADS[how]}")
        for at, (how, shift) in enumerate(_ALIGNMENTS)
    ]  # fmt: skip
    found = {
        variant: tuple(_error(table, runs, how, shift) for how, shift in _ALIGNMENTS)
        for variant, runs in grouped.items()
    }
    rows = [Row(name=variant, entries=cells) for variant, cells in found.items() if any(cell.text for cell in cells)]
    diagonal = table.values(AER, [run.at for runs in grouped.values() for run in runs], how="diagonal")
    if rows and diagonal:
        rows.append(Row(name="diagonal", entries=(number_cell(diagonal[-1], "{:.3f}".format), *(EMPTY,) * 3)))
    return _board(board_key, "alignment", "Alignment error rate of cross attention", columns, rows)


def lowest_error(table: ResultTable, rows: Sequence[int]) -> float | None:
    """The lowest AER of any head, normal or shifted, as the mean over Records; None where none was measured."""
    both = ([table.number(AER, at, how="best head", shift=shift) for shift in (False, True)] for at in rows)
    finite = [[m.value for m in found if m is not None and math.isfinite(m.value)] for found in both]
    lowest = [min(values) for values in finite if values]
    return math.fsum(lowest) / len(lowest) if lowest else None


def _error(table: ResultTable, runs: Sequence[ResultRow], how: str, shift: bool) -> TableCell:
    cell = mean_cell(table.values(AER, [run.at for run in runs], how=how, shift=shift), "{:.3f}".format)
    measured = table.number(AER, runs[0].at, how=how, shift=shift)
    if not cell.text or len(runs) > 1 or measured is None:
        return cell
    head = f", head {measured.where['of_head']}" if "of_head" in measured.where else ""
    return replace(cell, text=f"{cell.text} (layer {measured.where.get('of_layer')}{head})", brief=cell.text)


def _board(board_key: BoardKey, name: str, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Board:
    return Board(
        name=f"{board_key.name}/{name}", title=title, question="", columns=tuple(columns), ranked=(),
        unranked=tuple(rows),
    )  # fmt: skip
