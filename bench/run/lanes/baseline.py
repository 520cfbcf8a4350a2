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
from ...gate.build import build_checked
from ...train.objectives.objective import Columns, Evaluation, Objective
from ...train.objectives.registry import objective_for
from ..context import RecordBuilder, WorkerContext, implementation_of


@runtime_checkable
class Judging(Protocol):
    """A kind whose baselines are judged example by example, so that a variant can be paired with them."""

    def judged(self, predicted: Columns, test: Subset) -> Evaluation: ...


def baseline_cell(context: WorkerContext, cell: Cell) -> Record:
    builder = context.open(cell)
    try:
        task, recipe, dataset = builder.load()
        objective = objective_for(task.problem(), recipe)
        predict = task.baselines[cell.variant.name]
        if predict is untrained:
            _judge_untrained(builder, objective, dataset)
        else:
            predicted = predict(dataset, recipe)
            if isinstance(objective, Judging):
                found = objective.judged(predicted, dataset.test)
                builder.measurements += found.measurements("test")
                _keep(builder, found)
            else:
                builder.measurements += objective.judge(predicted, dataset.test)
    except Exception as error:
        return builder.failure(error)
    return builder.record(Outcome.OK)


def _judge_untrained(builder: RecordBuilder, objective: Objective, dataset: Dataset) -> None:
    """The model with which the reference's training begins, judged as what training ends with is."""
    context, cell = builder.context, builder.cell
    model = objective.model(build_checked(Spec(REFERENCE), context.device), cell.seed, str(context.device))
    model.to(context.device)
    last = time.monotonic()

    def alive() -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            context.send({"event": "alive", "key": cell.key})

    found = objective.evaluate(model, dataset.test, context.device, alive)
    builder.implementation = implementation_of(model.variants)
    builder.measurements += found.measurements("test")
    _keep(builder, found)


def _keep(builder: RecordBuilder, found: Evaluation) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, **found.predictions())  # type: ignore[arg-type]
    builder.artifacts["predictions"] = builder.context.store.put_artifact(file.getvalue(), ".npz")
