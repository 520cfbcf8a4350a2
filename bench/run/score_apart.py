"""Score apart: a trained model of foreign code is tested once more where nobody has imported that code; this counts.

Its attention lies in a child, and its answers are compared here. Code that changes answers, labels or scores in the
process of its training changes nothing of it.
"""

from __future__ import annotations

from contextlib import ExitStack

from ...variants.contract import AttentionShape, Variant
from ..core.cell import Cell
from ..core.errors import PluginError
from ..core.record import Outcome, Record
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..gate.build import Incorrect, built
from ..gate.variant import VariantFactory
from ..models.blocks import Model
from ..train.checkpoint import read_parameters
from ..train.objectives.objective import Objective
from ..train.objectives.registry import objective_for
from .context import RecordBuilder, WorkerContext
from .events import Stage
from .lanes.train import SPOT_CHECKS
from .link import linked
from .remote import factory_of
from .remote_child import OpenVariant
from .spot_check import SpotCheck

_PATIENCE = 1e4
"""In limits of an ordinary answer, for a whole evaluation: the parent of this process watches its time."""


def score_cell(context: WorkerContext, cell: Cell) -> Record:
    """A Record of the results on both splits and of the predictions alone, by the parameters in the checkpoint."""
    builder = RecordBuilder(context, cell)
    try:
        _score(builder)
    except Exception as error:
        return builder.failure(error)
    return builder.record(Outcome.OK)


def _score(builder: RecordBuilder) -> None:
    context, cell = builder.context, builder.cell
    task, recipe, dataset = builder.load()
    objective = objective_for(task.problem(), recipe)
    context.send(Stage(cell.key, "score"))
    with ExitStack() as links:
        model = _trained(builder, objective, links)
        calls = sum(len(subset) // recipe.evaluate_batch + 1 for subset in (dataset.test, dataset.validation))
        share = 0.0 if context.job.even_if_wrong else SPOT_CHECKS / calls
        # a copy would be one of what stands for it here
        spot = SpotCheck(cell.variant, context.device, share, copies=False)
        links.enter_context(spot.watching(model.variants))
        test = objective.evaluate(model, dataset.test, context.device, builder.heartbeat)
        validation = objective.evaluate(model, dataset.validation, context.device, builder.heartbeat)
        # of language models it calls the model once more
        builder.measurements += [*test.measurements("test"), *validation.measurements("validation")]
    if spot.found:
        raise Incorrect(f"as it is trained, {spot.found}")
    if cell.lane == "train":
        builder.keep_predictions(test)


def _trained(builder: RecordBuilder, objective: Objective, links: ExitStack) -> Model:
    """The model with its trained parameters, whose foreign layers lie in children until `links` ends."""
    context, cell = builder.context, builder.cell
    opened: dict[Spec, VariantFactory] = {}

    def build(shape: AttentionShape) -> Variant:
        spec = cell.variant.at(shape.layer)
        if VARIANTS.is_own(spec.name):
            return built(spec, shape)
        if spec not in opened:
            link = links.enter_context(linked(VARIANTS, spec.name, OpenVariant(variant=spec), _PATIENCE))
            opened[spec] = factory_of(link)
        return opened[spec].make(shape)

    model = objective.model(build, cell.seed, str(context.device)).to(context.device)
    path = context.store.checkpoint(cell, context.job.digests[cell.key])
    # a parameter with two names has one of them here
    missing = model.load_state_dict(read_parameters(path, context.device), strict=False).missing_keys
    if missing:
        raise PluginError(
            VARIANTS.plugin(cell.variant.name), f"its checkpoint lacks {missing[0]}, so that nobody can score it",
            "incorrect",
        )  # fmt: skip
    return model
