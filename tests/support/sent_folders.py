"""Folders of Records as an honest sender makes them: their scores, predictions and curves agree."""

import io
import json
from collections.abc import Callable

import numpy as np
import typer
from typer.testing import CliRunner

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement, Record
from attnbench.bench.plan.fingerprint import variant_hash
from attnbench.bench.store.store import Store

STEPS = 200


def of_release(start: str, cell: Cell) -> str:
    """The digest with this beginning and the installed code, which is that of a release; of other names some code."""
    try:
        return f"{start}-{variant_hash(cell, 'cpu')}"
    except SelectionError:
        return f"{start}-c3"


def curve(best: float, seed: int = 0) -> bytes:
    points = [
        {
            "step": step, "train_loss": 0.7, "validation_loss": 0.7 - step / 1000 + seed / 1e6,
            "validation_accuracy": best - (STEPS - step) / 1000, "seconds": step / 50,
        }
        for step in (100, STEPS)
    ]  # fmt: skip
    return json.dumps(points).encode()


def predictions(correct: np.ndarray, predicted: np.ndarray | None = None) -> bytes:
    file = io.BytesIO()
    np.savez(file, correct=correct.astype(np.uint8), predicted=correct if predicted is None else predicted)
    return file.getvalue()


def trained(
    bench: Callable[..., object], store: Store, variant: str, right: int, seed: int = 0, examples: int = 20
) -> Record:
    """A sound train Record, whose first `right` examples are right, appended to `store`."""
    correct, share = np.arange(examples) < right, right / examples
    labels = np.arange(examples) % 3
    kept = {
        "predictions": store.put_artifact(predictions(correct, np.where(correct, labels, (labels + 1) % 3)), ".npz"),
        "curve": store.put_artifact(curve(share, seed), ".json"),
    }
    measured = [
        Measurement.of("accuracy", share, split="test", examples=examples),
        Measurement.of("accuracy", share, split="validation", examples=500),
        Measurement.of("parameters", 100_000),
        Measurement.of("steps", STEPS), Measurement.of("best_step", STEPS), Measurement.of("train_seconds", 5.0),
    ]  # fmt: skip
    b = bench()
    cell = b.cell(variant, seed)
    record: Record = b.add(cell, measured, digest=of_release("a1-b2", cell), artifacts=kept, seconds=9.0)
    store.append(record)
    return record


def invoke(command: Callable[..., None], *arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output
