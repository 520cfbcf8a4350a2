"""Boards of a results folder: the Records that belong together, as Boards."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ..core.errors import SelectionError, StoreError
from ..core.metrics import check_margin
from ..score.cost import Mode
from ..score.key import BoardKey
from ..store.artifacts import StoredCurves, StoredPredictions, StoredSets
from ..store.record_files import FOLDER
from ..store.store import Store
from ..store.table import ResultTable, table_of
from .board import Board
from .kinds import cost_boards, summaries
from .length_board import board_for_lengths, sweeps, with_modes
from .suite_board import board_for_suite
from .task_board import board_for_task


def scored(
    table: ResultTable,
    predictions: StoredPredictions,
    found: list[BoardKey],
    margin: float | None,
    *,
    suite: tuple[str, tuple[str, ...], tuple[str, ...], str] | None = None,
    lengths: bool = False,
    mode: Mode | None = None,
) -> list[Board]:
    """The boards of the keys in `found`.

    `suite`: its name, tasks, declared variants and preset, to average over its tasks; `lengths`: sweeps alone.
    Raises SelectionError where there are no keys, and where `lengths` are asked for and no task was timed at two.
    """
    if suite is not None and lengths:
        raise SelectionError("expected a suite or --lengths, got both: lengths are those of a sweep, which is no suite")
    check_margin(margin)
    if not found:
        raise SelectionError("no board: trials of learning rates are on none; repeat the `attnbench run` to train")
    trained = [board_key for board_key in found if board_key.runs(table, "train", "baseline")]
    if suite is not None:
        name, tasks, declared, _ = suite
        # quality may come from any machine
        of_suite = {replace(board_key, machine="") for board_key in trained if board_key.task in tasks}
        return [
            board_for_suite(table, name, sorted(of_suite), predictions=predictions, wanted=tasks, declared=declared)
        ]
    if lengths:
        boards = [board_for_lengths(table, *each) for each in with_modes(table, sweeps(table, found), mode)]
        if not boards:
            text = "no task was timed at two lengths or more; run one with a range such as [length=256..4096]"
            raise SelectionError(text)
        return boards
    curves, sets = StoredCurves(predictions.store), StoredSets(predictions.store)
    boards = [
        board_for_task(table, board_key, predictions=predictions, curves=curves, sets=sets, margin=margin)
        for board_key in trained
    ]
    of_cost, left = cost_boards(table, set(found) - set(trained), mode)
    return boards + [each.board for each in of_cost] + boards_of_sweeps(table, left, mode)


def boards_of_sweeps(table: ResultTable, board_keys: list[BoardKey], mode: Mode | None = None) -> list[Board]:
    """The boards of what was only timed, in `mode` or in all: each sweep, or what stands for many."""
    swept = with_modes(table, sweeps(table, board_keys, least=1), mode)
    of_many = summaries(table, swept)
    claimed = {key for each in of_many for key in each.keys}
    alone = [each for each in swept if not claimed.issuperset(each[0].board_keys.values())]
    return [each.board for each in of_many] + [board_for_lengths(table, *each) for each in alone]


def read_store(store: Store, option: str = "--results") -> tuple[ResultTable, StoredPredictions]:
    """The Records of the results folder that `option` names; raises StoreError, saying what to run, without any."""
    table = table_of(store.records())
    if not table.rows:
        if store.root.name == FOLDER and any(store.root.glob("*.jsonl")):
            raise StoreError(
                f"{store.root} is the inside of a results folder; name it with {option} {store.root.parent}"
            )
        others = sorted({str(path.parent.parent) for path in Path("results").glob("**/records/*.jsonl")})
        make = "make some with `attnbench run --variants rela,entmax15 --task lra-text`"
        if others:
            there = "; ".join(f"{option} {shlex.quote(other)}" for other in others[:3])
            raise StoreError(f"no Records in {store.root}; there are some elsewhere: {there}; or {make}")
        raise StoreError(f"no Records in {store.root}; {make}, or name a folder that has some with {option}")
    return table, StoredPredictions(store)
