"""Classification: one label for each sequence or pair, measured by accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from ....tasks.contract import Classification, Subset, Whole
from ...core.record import Measurement
from ...models.blocks import BuildVariant, Model
from ...models.encoder import Encoder
from ..device import autocast, to_device
from .objective import Columns, Evaluation, Objective

ALIGNED = 64
"""Lengths that texts are padded to are multiples of it: kernels read whole tiles, and ask for multiples of 8."""


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
        model.eval()
        losses, classes, places = [], [], []
        with torch.inference_mode(), autocast(self.recipe, device):
            for at, length in self._batches(subset, device):
                ids, lengths, labels = to_device(subset.batch(at, length), device)
                # In float32 also under mixed precision: bfloat16 has three digits, and close classes would tie.
                logits = model(ids, lengths).float()
                # Summed and divided at the end: the last batch is smaller, and a mean of means would weigh its examples
                # more.
                losses.append(F.cross_entropy(logits, labels, reduction="sum"))
                classes.append(logits.argmax(-1))
                places.append(at)
                heartbeat()
        # Only here the host waits for a GPU, which would otherwise stand idle between two batches.
        loss = sum(torch.stack(losses).tolist()) / len(subset)
        predicted = np.empty(len(subset), dtype=np.int64)
        predicted[np.concatenate(places)] = torch.cat(classes).cpu().numpy()
        # By example, since comparisons between variants are paired by example.
        correct = (predicted == subset.labels).astype(np.int64)
        return ClassificationResult(loss=loss, predicted=predicted, correct=correct, subset=subset)

    def _batches(self, subset: Subset, device: torch.device) -> Iterator[tuple[Whole, int]]:
        """Positions in `subset` of each batch, and the length that its examples are padded to.

        On a GPU those of like lengths come together, padded to the next eighth of the preset's length, as many of them
        as `evaluate_batch` of that length have tokens: most texts are far shorter, and attention over padding takes the
        longest. There are few lengths, since some kernels are prepared for each. On a CPU the batches stay those of
        Records made before.
        """
        count, size, longest = len(subset), self.recipe.evaluate_batch, self.recipe.length
        order, padded = np.arange(count), np.full(count, longest)
        # a task may make its batches in a way of its own
        if device.type == "cuda" and type(subset).batch is Subset.batch:
            step = -(-longest // 8 // ALIGNED) * ALIGNED
            lengths = subset.layout(order, longest).ids.lengths.reshape(count, -1).max(1)
            padded = np.clip(-(-lengths // step) * step, min(step, longest), longest)
            order = np.argsort(padded, kind="stable")
        for length in np.unique(padded):
            alike = order[padded[order] == length]
            room = size * longest // int(length)
            for first in range(0, len(alike), room):
                yield alike[first : first + room], int(length)

    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        accuracy = float(np.mean(predicted == test.labels))
        return [Measurement.of("accuracy", accuracy, split="test", examples=len(test))]
