"""History: when each number of a board was measured and by which code, as its Records say themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from ..core.harness import NAME
from ..core.record import Outcome
from ..score.key import BoardKey
from ..score.quality import metric_of
from ..stats.format import counted
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .board import Board, Column, Row, TableCell

COLUMNS = (
    Column(name="day", title="day", importance=0, description="UTC day on which the first of the cells was begun"),
    Column(
        name="measured", title="measured", importance=0, description="the cells of that day and code; mean of tests"
    ),
    Column(name="code", title="code", description="version of attnbench, hash of the harness, hash of the variant"),
    Column(name="state", title="counts", description="whether the board shows it, else why not"),
)


def board_of_history(table: ResultTable, board_key: BoardKey) -> Board:
    """A row for each variant, day and code, the oldest first; Records that no longer count say why.

    Records state their own time and code: nothing else knows when another machine measured.
    """
    exactly = (board_key.task, board_key.preset, board_key.fidelity, board_key.protocol)
    found: dict[tuple[str, ...], list[ResultRow]] = {}
    rows = [*table.matching(*exactly), *table.passed_over(*exactly)]
    for row in sorted(rows, key=lambda row: row.started):
        of_the_board = {"train": row.selection == board_key.selection, "time": row.machine == board_key.machine}
        if of_the_board.get(row.lane):
            group = (row.started[:10], row.variant, _code(table, row), row.stale, row.lane)
            found.setdefault(group, []).append(row)
    value = _mean_of(table, board_key)
    return Board(
        name=f"{board_key.name}/history",
        title=f"{board_key.task}, preset {board_key.preset}: history",
        question=f"When was {board_key.task}, preset {board_key.preset}, measured, and by which code?",
        columns=COLUMNS,
        ranked=(),
        unranked=tuple(
            Row(
                name=variant,
                entries=(
                    TableCell(text=day),
                    TableCell(text=_words(lane, own, value)),
                    TableCell(text=code),
                    TableCell(text=f"no: {stale}" if stale else "yes", brief="no" if stale else ""),
                ),
                records=tuple(row.key for row in own),
            )
            for (day, variant, code, stale, lane), own in found.items()
        ),
    )


def _code(table: ResultTable, row: ResultRow) -> str:
    versions = table.records[row.at].machine.versions
    harness = f"harness {versions[NAME].rpartition('+')[2][:8]}, " if NAME in versions else ""
    return f"{versions.get('attnbench', 'unknown version')}, {harness}variant {row.variant_code[:8]}"


def _words(lane: str, rows: Sequence[ResultRow], value: Callable[[Sequence[ResultRow]], str]) -> str:
    failed = sum(row.outcome != Outcome.OK for row in rows)
    words = counted(len(rows), "training" if lane == "train" else "timing")
    return words + (f", {failed} without result" if failed else "") + (value(rows) if lane == "train" else "")


def _mean_of(table: ResultTable, board_key: BoardKey) -> Callable[[Sequence[ResultRow]], str]:
    metric = metric_of(table, board_key)

    def words(rows: Sequence[ResultRow]) -> str:
        tests = (table.number(metric.name, row.at, split="test") for row in rows)
        values = [test.value for test in tests if test is not None]
        return f": {metric.title} {metric.value(fsum(values) / len(values))}" if values else ""

    return words
