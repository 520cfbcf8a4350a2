"""The parts of the board of a translation task: scores by test set, and tables of its attention."""

from __future__ import annotations

from ...board.board import Column
from ...board.cells import number_cell
from ...board.kinds import BoardParts, SetStatistics
from ...board.task_context import BoardContext
from .attention_tables import attention_boards, attention_notes, lowest_error
from .test_sets import scores_by_set, set_boards, set_notes


def board_parts(context: BoardContext, sets: SetStatistics) -> BoardParts:
    """Empty for a board whose Records name no test sets."""
    table, board_key = context.table, context.board_key
    by_set = scores_by_set(table, board_key, context.metric, sets)
    if not by_set:
        return BoardParts()
    attention = attention_boards(table, board_key)
    aer = Column(
        name="alignment", title="AER", unit="fraction", better="lower", importance=6,
        description="lowest alignment error rate of any head of cross attention, normal or shifted",
    )  # fmt: skip
    return BoardParts(
        columns=[(aer, lambda name: number_cell(lowest_error(table, context.rows_of(name)), "{:.3f}".format))],
        boards=(*set_boards(board_key, context.metric, by_set, context.contrasts), *attention),
        notes=(*set_notes(by_set), *attention_notes(attention)),
    )
