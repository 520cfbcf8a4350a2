"""What the harness costs over the same training loop written bare.

Run: pytest tools/overhead.py --benchmark-only

Both loops make the same steps on the same model and data; they are timed in turns, and the ratio of the medians goes to
`extra_info`. The harness's loop includes choosing and padding batches, the schedule, progress reports and checkpoints.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnbench.bench.core.record import Provenance
from attnbench.bench.models.encoder import Encoder
from attnbench.bench.train.device import to_device
from attnbench.bench.train.objectives.classification import ClassificationObjective
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import Classification, Dataset, Recipe, Split
from attnbench.variants import build

CPU = torch.device("cpu")
RECIPE = Recipe(length=256, batch=16, steps=20, warmup=2, evaluate_every=1000, attention_dropout=0.0)
ROUNDS = 8


def data() -> Dataset:
    random = np.random.default_rng(0)
    tokens = random.integers(1, 257, 2000 * RECIPE.length).astype(np.uint16)
    split = Split(tokens=tokens, starts=np.arange(2001) * RECIPE.length, labels=random.integers(0, 2, 2000))
    few = split.subset(np.arange(8))
    return Dataset(
        train=split.all(), validation=few, test=few, provenance=Provenance(source="random", fidelity="synthetic")
    )


KIND = ClassificationObjective(Classification(vocabulary=257, classes=2), RECIPE)


def model() -> Encoder:
    return KIND.model(lambda shape: build("softmax", shape), 0)


def bare(dataset: Dataset) -> float:
    """Seconds of the same steps with nothing round them; batches are made beforehand."""
    encoder = model().train()
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=True)
    batches = [to_device(dataset.train.batch(np.arange(i * 16, i * 16 + 16), 256), CPU) for i in range(RECIPE.steps)]
    started = time.perf_counter()
    for ids, lengths, labels in batches:
        loss = torch.nn.functional.cross_entropy(encoder(ids, lengths), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
    return time.perf_counter() - started


def harness(dataset: Dataset, folder: Path, number: int) -> float:
    """Seconds of the trainer's own loop as it counts them, which leaves evaluation and checkpoint files out."""
    file = folder / f"{number}.pt"
    return Trainer(KIND, model(), dataset, task="t", seed=0, device=CPU, checkpoint=file).run().seconds


@pytest.mark.benchmark(group="overhead")
def test_overhead_of_the_training_loop(benchmark: Any, tmp_path: Path) -> None:
    dataset = data()
    bare(dataset), harness(dataset, tmp_path, 0)
    pairs = []
    for number in range(1, ROUNDS + 1):
        if number % 2:
            pairs.append((bare(dataset), harness(dataset, tmp_path, number)))
        else:
            second = harness(dataset, tmp_path, number)
            pairs.append((bare(dataset), second))
    ratios = sorted(ours / plain for plain, ours in pairs)
    benchmark.extra_info["ratio of the harness to the bare loop, median"] = round(statistics.median(ratios), 4)
    benchmark.extra_info["ratios"] = [round(ratio, 4) for ratio in ratios]
    print(f"\nharness over bare loop, {ROUNDS} interleaved rounds of {RECIPE.steps} steps: {benchmark.extra_info}")
    benchmark.pedantic(bare, args=(dataset,), rounds=3, iterations=1)
