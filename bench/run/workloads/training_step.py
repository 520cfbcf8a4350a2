"""The training step of a task's own model, as the time lane measures it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....tasks.contract import Dataset
from ...core.order import evenly_spaced
from ...core.spec import Spec
from ...gate.build import Builder
from ...models.blocks import Batch
from ...train.objectives.objective import Objective
from ...train.trainer import train_step
from .workload import Workload, Workloads


@dataclass(slots=True, kw_only=True)
class TrainStepWorkloads(Workloads):
    """Every workload makes training steps on one batch, at rate 0, so that each sample meets the same parameters."""

    objective: Objective
    batch: Batch
    build: Builder

    @classmethod
    def of(cls, objective: Objective, dataset: Dataset, device: torch.device, build: Builder) -> TrainStepWorkloads:
        batch = objective.batch(dataset.train, evenly_spaced(len(dataset.train), objective.recipe.batch), device)
        ids, lengths = batch[:2]
        return cls(
            recipe=objective.recipe, device=device, objective=objective, batch=batch, build=build,
            sequences=lengths.numel(), real=float(lengths.sum()), padded=ids.numel(),
        )  # fmt: skip

    def workload(self, variant: Spec) -> Workload:
        model = self.objective.model(self.build(variant), 0, str(self.device)).to(self.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

        def work() -> object:
            return train_step(model, optimiser, [self.batch], self.recipe, 0.0)

        return Workload(
            variants=model.variants, work=work, owners=(model, optimiser), parameters=model.parameter_counts()
        )
