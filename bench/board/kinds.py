"""Kinds of board beside those of tasks, suites and lengths: each is brought by the `boards.py` of a wing.

A wing is found by lying in `bench/wings/`, so that a kind comes off with its folder. Its module has one or more
of these functions:

    cost_boards(table, keys)           boards of what was only timed, of those keys that are of this kind
    summaries(table, swept)            boards that stand for many sweeps over lengths
    task_parts(context, read)          smaller boards below the board of a task, and the notes on them
    with_published(boards, suite)      these boards, and what papers printed beside them

Packages from elsewhere bring none: whoever reads the Records of others runs no code but ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..score.cost import Mode
from ..score.key import BoardKey
from ..stats.bootstrap import Statistics
from ..store.table import ResultTable
from .board import Board, Note

if TYPE_CHECKING:
    from .length_board import Swept
    from .task_context import BoardContext

SetStatistics = Callable[[str], Mapping[str, Statistics]]
"""Reads an artifact of predictions: the statistics of each sentence, by test set; empty where they are not at hand."""

WINGS = Path(__file__).parents[1] / "wings"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBoard:
    """A board of cost alone. `keys`: the boards that its Records would make by themselves, and which it stands for.

    `mode`: the one that it shows; None for several. `group`: the heading under which a page lists it, empty for none.
    """

    board: Board
    keys: Sequence[BoardKey]
    mode: Mode | None = None
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """Parts of a task's board, and the notes on them."""

    boards: Sequence[Board] = ()
    notes: Sequence[Note] = ()


@cache
def _kinds() -> tuple[Any, ...]:
    names = sorted(path.parent.name for path in WINGS.glob("*/boards.py"))
    return tuple(import_module(f"..wings.{name}.boards", __package__) for name in names)


def _functions(name: str) -> Iterator[Callable[..., Any]]:
    return (getattr(kind, name) for kind in _kinds() if hasattr(kind, name))


def cost_boards(
    table: ResultTable, keys: Collection[BoardKey], mode: Mode | None = None
) -> tuple[list[CostBoard], list[BoardKey]]:
    """The boards of all kinds of cost that show `mode`, and the keys that are left; each kind sees what is left."""
    found: list[CostBoard] = []
    left = sorted(keys)
    for make in _functions("cost_boards"):
        # a board of several modes is no answer to a question for one
        shown = [each for each in make(table, left) if mode in (None, each.mode)]
        claimed = {key for each in shown for key in each.keys}
        left = [key for key in left if key not in claimed]
        found += shown
    return found, left


def summaries(table: ResultTable, swept: Swept) -> list[CostBoard]:
    """The boards that stand for many sweeps; a page shows the sweeps too."""
    return [each for make in _functions("summaries") for each in make(table, swept)]


def with_published(boards: Sequence[Board], suite: str | None) -> list[Board]:
    """Our boards, and what papers printed on their tasks, or on all tasks of the suite."""
    for make in _functions("with_published"):
        boards = make(boards, suite)
    return list(boards)


def task_parts(context: BoardContext, read: SetStatistics) -> TaskParts:
    """The parts of a task's board of all kinds."""
    found = [make(context, read) for make in _functions("task_parts")]
    return TaskParts(
        boards=[board for each in found for board in each.boards], notes=[note for each in found for note in each.notes]
    )
