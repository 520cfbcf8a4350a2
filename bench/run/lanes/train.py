"""The train lane: one Cell trained, judged on the test split, and its attention looked at."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import numpy as np

from ....tasks.contract import Subset
from ...core.cell import Cell
from ...core.order import spaced
from ...core.record import Measurement, Outcome, Record
from ...gate.build import builder
from ...measure.attention.maps import attention_maps
from ...measure.attention.statistics import measure_attention
from ...models.blocks import Model
from ...train.objectives.objective import Evaluation, Kind
from ...train.objectives.registry import kind_of
from ...train.state import Training
from ...train.trainer import Trainer
from ..context import Desk, Sheet, implementation_of

OBSERVED = 32
"""Validation examples whose attention is measured, in batches of eight."""

MAPPED = 2
"""Validation examples whose attention maps are kept: the first and the last."""


def train_cell(desk: Desk, cell: Cell) -> Record:
    sheet = desk.open(cell)
    try:
        _train(sheet)
    except Exception as error:
        return sheet.failure(error)
    return sheet.record(Outcome.OK)


def _train(sheet: Sheet) -> None:
    desk, cell = sheet.desk, sheet.cell
    task, recipe, dataset = sheet.load()
    kind = kind_of(task.problem(), recipe)
    model = kind.model(builder(cell.variant, desk.device), cell.seed, str(desk.device))
    model.to(desk.device)
    last = time.monotonic()

    def report(training: Training) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            point = training.curve[-1] if training.curve else None
            desk.send(
                {
                    "event": "progress",
                    "key": cell.key,
                    "done": training.step,
                    "of": recipe.steps,
                    "loss": point.train_loss if point else None,
                    "quantity": kind.quantity,
                    "value": point.validation if point else None,
                }
            )

    def alive() -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            desk.send({"event": "alive", "key": cell.key})

    trainer = Trainer(
        kind,
        model,
        dataset,
        task=str(cell.task),
        seed=cell.seed,
        device=desk.device,
        checkpoint=desk.store.checkpoint(cell, desk.digests[cell.key]),
        report=report,
        beat=alive,
    )
    training = trainer.run()
    desk.send({"event": "stage", "key": cell.key, "stage": "test"})
    test = kind.evaluate(model, dataset.test, desk.device, alive)
    validation = kind.evaluate(model, dataset.validation, desk.device, alive)
    sheet.implementation = implementation_of(model.variants)
    whole, extra = model.parameter_counts()
    sheet.measurements += [
        *test.measurements("test"),
        *validation.measurements("validation"),
        Measurement.of("best_step", training.best_step),
        Measurement.of("steps", training.step),
        Measurement.of("parameters", whole),
        Measurement.of("extra_parameters", extra),
        Measurement.of("train_seconds", training.seconds),
    ]
    if not kind.observes:
        desk.send({"event": "stage", "key": cell.key, "stage": "sparsity"})
        _observe(sheet, kind, model, dataset.validation)
    curve = json.dumps([point.to_json(kind.quantity) for point in training.curve]).encode()
    sheet.artifacts["curve"] = desk.store.put_artifact(curve, ".json")
    sheet.artifacts["predictions"] = desk.store.put_artifact(_predictions(test), ".npz")


def _observe(sheet: Sheet, kind: Kind, model: Model, subset: Subset) -> None:
    """What attention does on `subset`, and the weights of two examples where the seed is 0."""
    device, store = sheet.desk.device, sheet.desk.store
    parts = np.array_split(spaced(len(subset), OBSERVED), OBSERVED // 8)
    sheet.measurements += measure_attention(model, (kind.batch(subset, at, device) for at in parts))
    sheet.measurements += _alphas(model)
    if sheet.cell.seed != 0:
        return
    maps = attention_maps(model, kind.batch(subset, spaced(len(subset), MAPPED), device))
    if maps is not None:
        sheet.artifacts["maps"] = store.put_artifact(maps, ".npz")


def _alphas(model: Model) -> list[Measurement]:
    """The alpha that each head has learned, where a variant learns one."""
    found = []
    for layer, variant in enumerate(model.variants):
        learned = variant.learned_alpha()
        if learned is not None:
            values = enumerate(learned.detach().flatten().tolist())
            found += [Measurement.of("alpha", value, layer=layer, head=head) for head, value in values]
    return found


def _predictions(test: Evaluation) -> bytes:
    file = io.BytesIO()
    columns: dict[str, Any] = test.predictions()
    np.savez_compressed(file, **columns)
    return file.getvalue()
