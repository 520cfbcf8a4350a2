"""The baseline lane: a trivial predictor of the task, on the very data that the variants are judged on."""

from __future__ import annotations

from ..cell import Cell
from ..kinds.known import kind_of
from ..record import Outcome, Record
from .desk import Desk


def baseline_cell(desk: Desk, cell: Cell) -> Record:
    sheet = desk.open(cell)
    try:
        task, recipe, dataset = sheet.load()
        predicted = task.baselines[cell.variant.name](dataset, recipe)
        sheet.measurements += kind_of(task.problem(), recipe).judge(predicted, dataset.test)
    except Exception as error:
        return sheet.failure(error)
    return sheet.record(Outcome.OK)
