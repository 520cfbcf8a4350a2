"""Classification: one label for each sequence or pair, measured by accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from ....tasks.contract import Classification, Subset, Whole
from ...core.record import Measurement
from ...models.blocks import BuildVariant, Model
from ...models.encoder import Encoder
from ..device import autocast
from .objective import Columns, Evaluation, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationResult(Evaluation):
    """Loss (nats per example), predicted classes and whether they are right, in the order of `subset`."""

    metric: ClassVar[str] = "accuracy"
    loss: float
    predicted: Whole
    correct: Whole
    subset: Subset

    @property
    def value(self) -> float:
        return float(self.correct.mean())

    def measurements(self, split: str) -> list[Measurement]:
        return [
            Measurement.of(name, value, split=split, examples=len(self.correct))
            for name, value in (("accuracy", self.value), ("loss", self.loss))
        ]

    def predictions(self) -> dict[str, Columns]:
        found: dict[str, Columns] = {name: getattr(self, name).astype(np.uint8) for name in ("correct", "predicted")}
        # pairs that share a document are no independent examples: boards resample by document
        return found | {"documents": self.subset.documents()} if self.subset.split.towers > 1 else found


class ClassificationObjective(Objective):
    """An encoder, cross entropy, and every example of a split evaluated once."""

    metric = "accuracy"
    problem: Classification

    def model(self, build: BuildVariant, seed: int, device: str = "cpu") -> Encoder:
        return Encoder(self.problem, self.recipe, build, seed, device)

    def evaluate(
        self, model: Model, subset: Subset, device: torch.device, heartbeat: Callable[[], None] = lambda: None
    ) -> ClassificationResult:
        recipe = self.recipe
        model.eval()
        losses, predicted = 0.0, np.empty(len(subset), dtype=np.int64)
        with torch.inference_mode(), autocast(recipe, device):
            for first in range(0, len(subset), recipe.evaluate_batch):
                at = np.arange(first, min(first + recipe.evaluate_batch, len(subset)))
                ids, lengths, labels = self.batch(subset, at, device)
                # In float32 also under mixed precision: bfloat16 has three digits, and close classes would tie.
                logits = model(ids, lengths).float()
                # Summed and divided at the end: the last batch is smaller, and a mean of means would weigh its examples
                # more.
                losses += float(F.cross_entropy(logits, labels, reduction="sum"))
                predicted[at] = logits.argmax(-1).cpu().numpy()
                heartbeat()
        # By example, since comparisons between variants are paired by example.
        correct = (predicted == subset.labels).astype(np.int64)
        return ClassificationResult(loss=losses / len(subset), predicted=predicted, correct=correct, subset=subset)

    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        accuracy = float(np.mean(predicted == test.labels))
        return [Measurement.of("accuracy", accuracy, split="test", examples=len(test))]
