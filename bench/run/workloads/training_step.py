"""The training step of a task's own model, as the time lane measures it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....tasks.contract import Dataset
from ...core.order import spaced
from ...core.spec import Spec
from ...gate.build import builder
from ...models.blocks import Batch
from ...train.objectives.objective import Kind
from ...train.trainer import train_step
from .workload import Setup, Subject


@dataclass(slots=True, kw_only=True)
class TrainingSteps(Setup):
    """Every subject makes training steps on one batch, at rate 0, so that each sample meets the same parameters."""

    kind: Kind
    batch: Batch

    @classmethod
    def of(cls, kind: Kind, dataset: Dataset, device: torch.device) -> TrainingSteps:
        batch = kind.batch(dataset.train, spaced(len(dataset.train), kind.recipe.batch), device)
        ids, lengths = batch[:2]
        return cls(
            recipe=kind.recipe, device=device, kind=kind, batch=batch, sequences=lengths.numel(),
            real=float(lengths.sum()), padded=ids.numel(),
        )  # fmt: skip

    def subject(self, variant: Spec) -> Subject:
        model = self.kind.model(builder(variant, self.device), 0, str(self.device)).to(self.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

        def work() -> object:
            return train_step(model, optimiser, [self.batch], self.recipe, 0.0)

        return Subject(
            variants=model.variants, work=work, owners=(model, optimiser), parameters=model.parameter_counts()
        )
