"""The baseline lane: a trivial predictor of the task, on the same data as the variants."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ....tasks.contract import Dataset, Subset, untrained
from ...core.cell import REFERENCE, Cell
from ...core.record import Outcome, Record
from ...core.spec import Spec
from ...gate.build import build_checked
from ...train.objectives.objective import Columns, Evaluation, Objective
from ...train.objectives.registry import objective_for
from ..context import RecordBuilder, WorkerContext, implementation_of


@runtime_checkable
class EvaluatesBaselines(Protocol):
    """An objective that evaluates baselines example by example, so that a variant can be paired with them."""

    def evaluate_baseline(self, predicted: Columns, test: Subset) -> Evaluation: ...


def baseline_cell(context: WorkerContext, cell: Cell) -> Record:
    builder = RecordBuilder(context, cell)
    try:
        task, recipe, dataset = builder.load()
        objective = objective_for(task.problem(), recipe)
        predict = task.baselines[cell.variant.name]
        # It is no function of the data alone: it needs the model of this preset.
        if predict is untrained:
            _evaluate_untrained(builder, objective, dataset)
        else:
            predicted = predict(dataset, recipe)
            if isinstance(objective, EvaluatesBaselines):
                found = objective.evaluate_baseline(predicted, dataset.test)
                builder.measurements += found.measurements("test")
                builder.keep_predictions(found)
            else:
                builder.measurements += objective.measure_baseline(predicted, dataset.test)
    except Exception as error:
        return builder.failure(error)
    return builder.record(Outcome.OK)


def _evaluate_untrained(builder: RecordBuilder, objective: Objective, dataset: Dataset) -> None:
    """Evaluates the reference before its training like a trained model: the level from which learning starts."""
    context, cell = builder.context, builder.cell
    model = objective.model(build_checked(Spec(REFERENCE), objective.recipe.batch), cell.seed, str(context.device))
    model.to(context.device)
    found = objective.evaluate(model, dataset.test, context.device, builder.heartbeat)
    builder.implementation = implementation_of(model.variants)
    builder.measurements += found.measurements("test")
    builder.keep_predictions(found)
