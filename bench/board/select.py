"""Boards of a results folder: which Records answer which question, as Boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..store.artifacts import StoredCurves, StoredPredictions, StoredSets

if TYPE_CHECKING:
    from ..score.cost import Mode
    from ..score.key import BoardKey
    from ..score.quality import Predictions
    from ..store.store import Store
    from ..store.table import ResultTable
    from .board import Board


def scored(
    table: ResultTable,
    predictions: StoredPredictions,
    found: list[BoardKey],
    margin: float | None,
    *,
    suite: tuple[str, tuple[str, ...]] | None = None,
    lengths: bool = False,
    mode: Mode | None = None,
) -> list[Board]:
    """The boards of the keys in `found`. `suite`: its name and tasks, to average over."""
    from .task_board import board_for_task

    if suite is not None:
        return [_board_for_suite(table, *suite, found, predictions)]
    if lengths:
        return _boards_for_lengths(table, found, mode, 2)
    trained = [board_key for board_key in found if board_key.runs(table, "train", "baseline")]
    curves, sets = StoredCurves(predictions.store), StoredSets(predictions.store)
    boards = [
        board_for_task(table, board_key, predictions=predictions, curves=curves, sets=sets, margin=margin)
        for board_key in trained
    ]
    untrained = sorted(set(found) - set(trained))
    return boards + _boards_for_lengths(table, untrained, mode, 1)


def _board_for_suite(
    table: ResultTable, name: str, tasks: tuple[str, ...], found: list[BoardKey], predictions: Predictions
) -> Board:
    from dataclasses import replace

    from .suite_board import board_for_suite

    judged = [
        board_key for board_key in found if board_key.task in tasks and board_key.runs(table, "train", "baseline")
    ]
    # accuracy may come from any machine
    of_suite = {replace(board_key, machine="") for board_key in judged}
    return board_for_suite(table, name, sorted(of_suite), predictions=predictions, wanted=tasks)


def _boards_for_lengths(table: ResultTable, found: list[BoardKey], mode: Mode | None, least: int) -> list[Board]:
    from ..core.errors import SelectionError
    from .length_board import boards_over_lengths

    boards = boards_over_lengths(table, found, mode, least)
    if not boards and least > 1:
        raise SelectionError("no task was timed at two lengths or more; run one with a range such as [length=256..4k]")
    return boards


def read_store(store: Store) -> tuple[ResultTable, StoredPredictions]:
    """The Records of a results folder; raises StoreError, saying what to run, where there are none."""
    from ..core.errors import StoreError
    from ..store.table import table_of

    table = table_of(store.records())
    if not table.rows:
        raise StoreError(
            f"no Records in {store.root}{_elsewhere()}; make some with "
            "`attnbench run --variants rela,entmax15 --task lra-text`, or name a folder that has some with --results"
        )
    return table, StoredPredictions(store)


def _elsewhere() -> str:
    """Folders of Records that a person may have meant, for an error."""
    found = sorted({str(path.parent.parent) for path in Path("results").glob("**/records/*.jsonl")})
    return f" (there are some in {', '.join(found[:3])})" if found else ""
