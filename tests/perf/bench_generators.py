"""Speed of the generators: `pytest tests/perf`; nothing here asserts a time."""

from itertools import count

import numpy as np
import pytest
import torch

from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import train_step
from attnbench.tasks.lra._listops.grammar import TREES, Sizes, generate, grow
from attnbench.tasks.problems.token_prediction import TokenRecipe, TokenStream
from attnbench.tasks.synthetic.task import SyntheticTask
from attnbench.variants import build

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

SYNTHETIC = ("recall", "noisy-recall", "max", "selective-copy", "flip-flop", "two-back", "copy", "reverse", "sort")


def test_growing_a_batch_of_trees(benchmark: object) -> None:
    assert callable(benchmark)
    tokens, starts, values = benchmark(lambda: grow(np.random.PCG64(0), TREES, 500, 2_000))
    assert len(starts) == len(values) + 1 and len(tokens) == starts[-1]


def test_generating_a_tenth_of_listops(benchmark: object) -> None:
    sizes = Sizes(train=9_600, validation=200, test=200)
    splits = benchmark.pedantic(generate, (sizes,), rounds=3)  # type: ignore[attr-defined]
    assert len(splits["train"]) == 9_600


@pytest.mark.parametrize("name", SYNTHETIC)
def test_drawing_a_batch_of_training(benchmark: object, name: str) -> None:
    """Beside `test_training_on_a_batch`: drawing is to take a tenth of it at most."""
    task, recipe = _at_quick(name)
    drawn = task.draw_training(recipe)
    random = np.random.default_rng(0)
    benchmark.pedantic(lambda: drawn(random, recipe.batch), rounds=200)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_training_on_a_batch(benchmark: object, name: str) -> None:
    task, recipe = _at_quick(name)
    objective = objective_for(task.problem(), recipe)
    model = objective.model(lambda shape: build("softmax", shape), 0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    feed = objective.feed(TokenStream.of(task.draw_training(recipe)), name, 0)
    batches = [feed(step, torch.device("cpu")) for step in range(20)]
    steps = count()
    benchmark.pedantic(  # type: ignore[attr-defined]
        lambda: train_step(model, optimiser, [batches[next(steps) % 20]], recipe, 0.0), rounds=40, warmup_rounds=3
    )


def _at_quick(name: str) -> tuple[SyntheticTask, TokenRecipe]:
    task = TASKS.build(Spec(name))
    recipe = task.recipe(Spec("quick"))
    assert isinstance(task, SyntheticTask) and isinstance(recipe, TokenRecipe)
    return task, recipe
