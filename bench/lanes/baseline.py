"""The baseline lane: a trivial predictor of the task, on the very data that the variants are judged on."""

from __future__ import annotations

import numpy as np

from ..cell import Cell
from ..record import Measurement, Outcome, Record
from .desk import Desk


def baseline_cell(desk: Desk, cell: Cell) -> Record:
    sheet = desk.open(cell)
    try:
        task, recipe, dataset = sheet.load()
        predicted = task.baselines[cell.variant.name](dataset, recipe)
        accuracy = float(np.mean(predicted == dataset.test.labels))
        sheet.measurements.append(Measurement.of("accuracy", accuracy, split="test", examples=len(dataset.test)))
    except Exception as error:
        return sheet.failure(error)
    return sheet.record(Outcome.OK)
