"""Kinds of board that wings add to those of tasks, suites and lengths, and their parts of the board of a task.

| entry points | function | returns |
|---|---|---|
| `attnbench.cost_boards` | `(table, keys)` | boards of what was only timed, of the keys that they claim |
| `attnbench.board_summaries` | `(table, swept)` | boards that stand for many sweeps over lengths |
| `attnbench.board_parts` | `(context, read)` | columns, smaller boards and notes for the board of a task |
| `attnbench.published` | `(boards, suite)` | these boards, and what papers printed on their tasks |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.entry_points import load_own
from ..score.cost import Mode
from ..score.key import BoardKey
from ..stats.bootstrap import Statistics
from ..store.table import ResultTable
from .board import Board, Note
from .cells import Columns

if TYPE_CHECKING:
    from .length_board import Swept
    from .task_context import BoardContext

SetStatistics = Callable[[str], Mapping[str, Statistics]]
"""Reads an artifact of predictions: the statistics of each sentence, by test set; empty where they are not at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardParts:
    """The additions of one wing to the board of a task; none where the task is not of its kind."""

    columns: Columns = ()
    boards: tuple[Board, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBoard:
    """A board of cost alone. `keys`: the boards that its Records would make by themselves, and which it stands for.

    `mode`: the one that it shows; None for several. `group`: the heading under which a page lists it, empty for none.
    """

    board: Board
    keys: Sequence[BoardKey]
    mode: Mode | None = None
    group: str = ""


def parts_of_wings(context: BoardContext, read: SetStatistics) -> list[BoardParts]:
    """The parts of a task's board."""
    return [make(context, read) for make in load_own("attnbench.board_parts")]


def cost_boards(
    table: ResultTable, keys: Collection[BoardKey], mode: Mode | None = None
) -> tuple[list[CostBoard], list[BoardKey]]:
    """The boards of all kinds of cost that show `mode`, and the keys that are left; each kind sees what is left."""
    found: list[CostBoard] = []
    left = sorted(keys)
    for make in load_own("attnbench.cost_boards"):
        # a board of several modes is no answer to a question for one
        shown = [each for each in make(table, left) if mode in (None, each.mode)]
        claimed = {key for each in shown for key in each.keys}
        left = [key for key in left if key not in claimed]
        found += shown
    return found, left


def summaries(table: ResultTable, swept: Swept) -> list[CostBoard]:
    """The boards that stand for many sweeps; a page shows the sweeps too."""
    return [each for make in load_own("attnbench.board_summaries") for each in make(table, swept)]


def with_published(boards: Sequence[Board], suite: str | None) -> list[Board]:
    """Our boards, and what papers printed on their tasks, or on all tasks of the suite."""
    for make in load_own("attnbench.published"):
        boards = make(boards, suite)
    return list(boards)
