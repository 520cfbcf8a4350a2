"""The batches of any step of a training, as its objective defines them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnbench.bench.models.blocks import Batch
from attnbench.bench.train.trainer import Trainer


def batches(run: Trainer, step: int) -> Iterator[Batch]:
    feed = run.objective.feed(run.dataset.train, run.task, run.seed)
    count = run.recipe.accumulate
    return (feed(number, torch.device("cpu")) for number in range(step * count, (step + 1) * count))
