"""The baseline lane: a trivial predictor of the task, on the very data that the variants are judged on."""

from __future__ import annotations

import io
import time
from typing import Protocol, runtime_checkable

import numpy as np

from ....tasks.contract import Dataset, Subset
from ....tasks.problems.translation import untrained
from ...core.cell import REFERENCE, Cell
from ...core.record import Outcome, Record
from ...core.spec import Spec
from ...gate.build import builder
from ...train.objectives.objective import Columns, Evaluation, Kind
from ...train.objectives.registry import kind_of
from ..context import Desk, Sheet, implementation_of


@runtime_checkable
class Judging(Protocol):
    """A kind whose baselines are judged example by example, so that a variant can be paired with them."""

    def judged(self, predicted: Columns, test: Subset) -> Evaluation: ...


def baseline_cell(desk: Desk, cell: Cell) -> Record:
    sheet = desk.open(cell)
    try:
        task, recipe, dataset = sheet.load()
        kind = kind_of(task.problem(), recipe)
        predict = task.baselines[cell.variant.name]
        if predict is untrained:
            _judge_untrained(sheet, kind, dataset)
        else:
            predicted = predict(dataset, recipe)
            if isinstance(kind, Judging):
                found = kind.judged(predicted, dataset.test)
                sheet.measurements += found.measurements("test")
                _keep(sheet, found)
            else:
                sheet.measurements += kind.judge(predicted, dataset.test)
    except Exception as error:
        return sheet.failure(error)
    return sheet.record(Outcome.OK)


def _judge_untrained(sheet: Sheet, kind: Kind, dataset: Dataset) -> None:
    """The model with which the reference's training begins, judged as what training ends with is."""
    desk, cell = sheet.desk, sheet.cell
    model = kind.model(builder(Spec(REFERENCE), desk.device), cell.seed, str(desk.device))
    model.to(desk.device)
    last = time.monotonic()

    def alive() -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            desk.send({"event": "alive", "key": cell.key})

    found = kind.evaluate(model, dataset.test, desk.device, alive)
    sheet.implementation = implementation_of(model.variants)
    sheet.measurements += found.measurements("test")
    _keep(sheet, found)


def _keep(sheet: Sheet, found: Evaluation) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, **found.predictions())  # type: ignore[arg-type]
    sheet.artifacts["predictions"] = sheet.desk.store.put_artifact(file.getvalue(), ".npz")
