"""The train lane: one Cell trained, judged on the test split, and its attention looked at."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict

import numpy as np

from ..backbone import Encoder
from ..cell import Cell
from ..maps import attention_maps
from ..record import Measurement, Outcome, Record
from ..sparsity import measure_attention
from ..train import Evaluation, Trainer, Training, evaluate
from .desk import Desk, Sheet, builder, implementation_of


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
    model = Encoder(task.problem(), recipe, builder(cell.variant, desk.device), cell.seed, str(desk.device))
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
                    "accuracy": point.validation_accuracy if point else None,
                }
            )

    def alive() -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            desk.send({"event": "alive", "key": cell.key})

    trainer = Trainer(
        model,
        dataset,
        recipe,
        task=str(cell.task),
        seed=cell.seed,
        device=desk.device,
        checkpoint=desk.store.checkpoint(cell, desk.digests[cell.key]),
        report=report,
        beat=alive,
    )
    training = trainer.run()
    desk.send({"event": "stage", "key": cell.key, "stage": "test"})
    test = evaluate(model, dataset.test, recipe, desk.device, alive)
    validation = evaluate(model, dataset.validation, recipe, desk.device, alive)
    sheet.implementation = implementation_of(model.variants)
    whole, extra = model.parameter_counts()
    sheet.measurements += [
        *_judged(test, "test"),
        *_judged(validation, "validation"),
        Measurement.of("best_step", training.best_step),
        Measurement.of("steps", training.step),
        Measurement.of("parameters", whole),
        Measurement.of("extra_parameters", extra),
        Measurement.of("train_seconds", training.seconds),
    ]
    desk.send({"event": "stage", "key": cell.key, "stage": "sparsity"})
    sheet.measurements += measure_attention(model, dataset.validation, recipe, desk.device)
    sheet.measurements += _alphas(model)
    if cell.seed == 0:
        maps = attention_maps(model, dataset.validation, recipe, desk.device)
        if maps is not None:
            sheet.artifacts["maps"] = desk.store.put_artifact(maps, ".npz")
    curve = json.dumps([asdict(point) for point in training.curve]).encode()
    sheet.artifacts["curve"] = desk.store.put_artifact(curve, ".json")
    sheet.artifacts["predictions"] = desk.store.put_artifact(_predictions(test), ".npz")


def _judged(found: Evaluation, split: str) -> list[Measurement]:
    return [
        Measurement.of(name, value, split=split, examples=len(found.correct))
        for name, value in (("accuracy", found.accuracy), ("loss", found.loss))
    ]


def _alphas(model: Encoder) -> list[Measurement]:
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
    np.savez_compressed(file, correct=test.correct.astype(np.uint8), predicted=test.predicted.astype(np.uint8))
    return file.getvalue()
