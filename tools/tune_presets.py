"""Validation scores of a preset under other settings, on seeds that no board uses.

    python tools/tune_presets.py lra-image quick "positions=learned|sinusoidal,learning_rate=1e-3|2e-3|4e-3"

A choice of a preset is made by such a table and never on test data: the test split is not even evaluated. Boards use
seeds from 0; these begin at 100. Every setting is trained with the reference variant alone, so that no variant is
favoured by what was tried for it. A preset's `learning_rates` lets each variant take its own rate, in any run.
"""

from __future__ import annotations

import argparse
import itertools
import math

import torch

from attnbench.bench.core.cell import FIRST_TUNING_SEED, REFERENCE
from attnbench.bench.core.registry import TASKS
from attnbench.bench.core.spec import Spec
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data.data import place as data_place
from attnbench.variants import build


def best(task: str, preset: Spec, seed: int, place: DataPlace) -> tuple[float, float]:
    """Validation score of the best step, and its loss; the seconds that it took are no part of it."""
    problem = TASKS.build(Spec.parse(task))
    recipe = problem.recipe(preset)
    dataset = problem.load(place, recipe, seed, "validation")
    objective = objective_for(problem.problem(), recipe)
    model = objective.model(lambda shape: build(REFERENCE, shape), seed)
    trained = Trainer(objective, model, dataset, task=task, seed=seed, device=torch.device("cpu")).run()
    chosen = next(point for point in trained.curve if point.step == trained.best_step)
    return chosen.validation, chosen.validation_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("preset")
    parser.add_argument("settings", help="name=value|value,name=value|value")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    place = data_place(offline=True)
    axes = [(name, values.split("|")) for name, _, values in (s.partition("=") for s in chosen.settings.split(","))]
    print(
        f"{chosen.task} {chosen.preset}: validation, {REFERENCE}, seeds {FIRST_TUNING_SEED} to "
        f"{FIRST_TUNING_SEED + chosen.seeds - 1}"
    )
    for values in itertools.product(*(values for _, values in axes)):
        words = ",".join(f"{name}={value}" for (name, _), value in zip(axes, values, strict=True))
        preset = Spec.parse(f"{chosen.preset}[{words}]")
        scores = [best(chosen.task, preset, FIRST_TUNING_SEED + at, place) for at in range(chosen.seeds)]
        mean = math.fsum(score for score, _ in scores) / len(scores)
        loss = math.fsum(loss for _, loss in scores) / len(scores)
        each = " ".join(f"{score:.4f}" for score, _ in scores)
        print(f"{words:60} {mean:.4f} loss {loss:.4f}  ({each})", flush=True)


if __name__ == "__main__":
    main()
