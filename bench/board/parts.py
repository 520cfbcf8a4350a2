"""Parts that wings add to the board of a task: columns, smaller boards below it, and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from ..core.entry_points import is_own, read_group
from ..stats.bootstrap import Statistics
from .board import Board, Note
from .columns import Columns
from .task_context import BoardContext

SetStatistics = Callable[[str], Mapping[str, Statistics]]
"""Reads an artifact of predictions: the statistics of each sentence, by test set; empty where they are not at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardParts:
    """The additions of one wing; none where the board's task is not of its kind."""

    columns: Columns = ()
    boards: tuple[Board, ...] = ()
    notes: tuple[Note, ...] = ()


@cache
def _wings() -> tuple[Callable[[BoardContext, SetStatistics], BoardParts], ...]:
    points = read_group("attnbench.board_parts").points.values()
    # readers of Records import no code of others
    return tuple(point.load() for point in points if is_own(point))


def parts_of_wings(context: BoardContext, sets: SetStatistics) -> list[BoardParts]:
    """The parts of each function under `attnbench.board_parts`."""
    return [parts(context, sets) for parts in _wings()]
