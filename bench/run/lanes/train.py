"""The lanes train and tune: one Cell trained and evaluated on the test split; in `train`, its attention measured.

A Cell of the lane `tune` is one learning rate of a grid, at a seed of no board. `store/learning_rates.py` chooses by
its validation result; the test result is for the figure that shows every rate.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from ....tasks.contract import Subset
from ...core.cell import Cell
from ...core.order import evenly_spaced
from ...core.record import Measurement, Outcome, Record
from ...core.registry import VARIANTS
from ...gate.build import Incorrect
from ...measure.attention.recorder import attention_maps
from ...measure.attention.statistics import measure_attention
from ...models.blocks import Model
from ...train.checkpoint import Training, mark_of
from ...train.objectives.objective import Objective
from ...train.objectives.registry import objective_for
from ...train.trainer import Trainer, is_settled, steps_until
from ..context import RecordBuilder, WorkerContext, decode_state, implementation_of, own_projections
from ..events import Event, Stage, TrainingProgress, Warned
from ..gate_first import examine_apart
from ..global_state import StateWatch
from ..spot_check import SpotCheck

LEARNED = 0.9
"""The share right at which `steps_to_90` counts, as a measure of how many examples a variant needs."""

SPOT_CHECKS = 8
"""Calls of each layer of foreign code that are tested in a training, about."""

OBSERVED = 32
"""Validation examples whose attention is measured, in batches of eight."""

MAPPED = 2
"""Validation examples whose attention maps are kept: the first and the last."""


def train_cell(context: WorkerContext, cell: Cell) -> Record:
    builder = RecordBuilder(context, cell)
    try:
        _train(builder)
    except Exception as error:
        return builder.failure(error)
    return builder.record(Outcome.OK)


def _train(builder: RecordBuilder) -> None:
    context, cell = builder.context, builder.cell
    watch = StateWatch(speeds=False)
    task, recipe, dataset = builder.load()
    if not VARIANTS.is_own(cell.variant.name):
        examine_apart(context, [cell], task, recipe)
    if recipe.learning_rates:
        # the Record keeps the preset as its setting, which all variants share, and the rate as a measurement
        recipe = replace(recipe, learning_rate=context.job.rates[cell.key], learning_rates=())
        builder.measurements.append(Measurement.of("learning_rate", recipe.learning_rate))
        if (scale := context.job.scales.get(cell.key)) is not None:
            recipe = replace(recipe, query_key_scale=scale)
            builder.measurements.append(Measurement.of("query_key_scale", scale))
    objective = objective_for(task.problem(), recipe)
    model = objective.model(context.builder(recipe.batch)(cell.variant), cell.seed, str(context.device))
    model.to(context.device)
    # after the gate and now, since hours of training by other rules would be lost
    if changes := watch.changes():
        raise Incorrect(changes)

    def progress(training: Training) -> Event:
        found = TrainingProgress(key=cell.key, done=training.step, of=recipe.steps, metric=objective.metric)
        if not training.curve:
            return found
        point = training.curve[-1]
        return structs.replace(
            found, loss=point.train_loss, value=point.validation, validation_loss=point.validation_loss,
            validated=point.step,
        )  # fmt: skip

    def report(training: Training) -> None:
        # a tracker draws the curve while it grows, so each validation is told
        is_new = bool(training.curve) and training.curve[-1].step == training.step
        builder.report(lambda: progress(training), at_once=is_new)

    checkpoint = context.store.checkpoint(cell, context.job.digests[cell.key])
    trainer = Trainer(
        objective,
        model,
        dataset,
        task=str(cell.task),
        seed=cell.seed,
        device=context.device,
        checkpoint=checkpoint,
        mark=mark_of(checkpoint, context.place.cache),
        report=report,
        heartbeat=builder.heartbeat,
        notice=lambda message: context.send(Warned(message)),
    )
    share = 0.0 if context.job.even_if_wrong else SPOT_CHECKS / recipe.steps
    spot = SpotCheck(cell.variant, context.device, share)
    with spot.watching(model.variants, trainer.optimiser):
        training = trainer.run()
    if wrong := watch.changes() or spot.found:
        raise Incorrect(wrong)
    context.send(Stage(cell.key, "test"))
    # The test split is read once, after validation has chosen the step, and by nothing that makes a choice.
    test = objective.evaluate(model, dataset.test, context.device, builder.heartbeat)
    validation = objective.evaluate(model, dataset.validation, context.device, builder.heartbeat)
    # once more, since what was scored counts
    if wrong := watch.changes() or spot.hooks_elsewhere(model, model.variants):
        raise Incorrect(wrong)
    builder.implementation = implementation_of(model.variants)
    # numbers that training changed are parameters, whatever their author calls them
    whole, extra = (count + spot.learned for count in model.parameter_counts())
    builder.measurements += [
        *test.measurements("test"),
        *validation.measurements("validation"),
        Measurement.of("best_step", training.best_step),
        Measurement.of("steps", training.step),
        Measurement.of("parameters", whole),
        Measurement.of("extra_parameters", extra),
        *own_projections(model.variants),
        *_costs(trainer),
    ]
    if trainer.may_end:
        # an early end is one at the ceiling
        is_still = training.end > 0 or is_settled(training.curve)
        builder.measurements.append(Measurement.of("settled", float(is_still)))
        if (learned := steps_until(training.curve, LEARNED)) is not None:
            builder.measurements.append(Measurement.of("steps_to_90", learned))
        else:
            builder.absent["steps_to_90"] = "validation never had 90 % right"
    if task.problem().causal:
        # some tasks are never timed, and recall is a question of how much a state holds
        builder.measurements += decode_state(model.variants, model.variants[0].shape.max_length)
    # the preset asks for dropout of the attention weights, and the variant drops none
    if any(variant.shape.dropout > 0 and not variant.uses_dropout for variant in model.variants):
        builder.measurements.append(Measurement.of("attention_dropout", 0.0))
    if not objective.measures_attention and cell.lane == "train":
        context.send(Stage(cell.key, "sparsity"))
        _observe(builder, objective, model, dataset.validation)
    curve = json.dumps([point.to_json(objective.metric) for point in training.curve]).encode()
    builder.artifacts["curve"] = context.store.put_artifact(curve, ".json")
    # nothing is compared by the examples of a trial
    if cell.lane == "train":
        builder.keep_predictions(test)


def _costs(trainer: Trainer) -> list[Measurement]:
    """Times of the training loop, and on a GPU what the host and a captured step have to do with them."""
    training = trainer.state
    found = [
        Measurement.of("train_seconds", training.seconds),
        Measurement.of("data_share", training.data_share),
    ]
    # on a CPU all of a step is the processor's, and nothing is captured
    if trainer.device.type == "cuda":
        why: dict[str, Any] = {"reason": trainer.uncaptured} if trainer.uncaptured else {}
        found += [
            Measurement.of("host_seconds", training.host_seconds_a_step),
            Measurement.of("captured_steps", training.replays / max(training.step, 1), **why),
        ]
    return found


def _observe(builder: RecordBuilder, objective: Objective, model: Model, subset: Subset) -> None:
    """Measure attention on `subset`, and keep the weights of two examples where the seed is 0."""
    device, store = builder.context.device, builder.context.store
    # Spread over the split, which may be sorted by label or length.
    parts = np.array_split(evenly_spaced(len(subset), OBSERVED), OBSERVED // 8)
    builder.measurements += measure_attention(model, (objective.batch(subset, at, device) for at in parts))
    for layer, variant in enumerate(model.variants):
        # of each head, where the variant learns one
        if (learned := variant.learned_alpha()) is not None:
            builder.measurements += [
                Measurement.of("alpha", value, layer=layer, head=head)
                for head, value in enumerate(learned.detach().flatten().tolist())
            ]
    # Maps are pictures: one seed shows enough, and they are the largest artifact.
    if builder.cell.seed != 0:
        return
    maps = attention_maps(model, objective.batch(subset, evenly_spaced(len(subset), MAPPED), device))
    if maps is not None:
        builder.artifacts["maps"] = store.put_artifact(maps, ".npz")
