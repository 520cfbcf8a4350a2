"""Time of a batch and of a training step in two versions of attnbench, by processes that take turns.

Run: python tests/perf/bench_training_loop.py OLD NEW [TASK ...]     OLD, NEW: folders that hold a folder `attnbench`

Both train softmax on one thread at the task's preset `quick`, by its own `Trainer`, with the time of each step taken
where it reports; a batch is that of `pt-2x64`, or of `base` where there is none. Data are those of ATTNBENCH_DATA where
it has them, otherwise random ones of the same shape, in memory maps as real ones are. A round is one process of each
version, in an order that turns round; a ratio is that of the medians of a round, and shown are the median ratio, the
smallest and the largest. Nothing is asserted.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time

ROUNDS, STEPS, BATCHES = 5, 14, 60

TASKS = ("lra-text", "lra-image", "lra-retrieval", "tinyshakespeare", "wmt14-en-de", "recall")


def random_dataset(task: object, recipe: object) -> object:
    """Examples of the longest length, or sentences of up to 40 tokens, in memory maps."""
    import tempfile
    from pathlib import Path

    import numpy as np

    from attnbench.tasks.contract import Classification, Dataset, Provenance, Split
    from attnbench.tasks.problems.language_modeling import Language, Windows
    from attnbench.tasks.problems.translation import SentencePairs

    problem = task.problem()  # type: ignore[attr-defined]
    draw, towers, count = np.random.default_rng(0), 2 if not isinstance(problem, Language) else 1, 2_000
    if isinstance(problem, Classification):
        towers = problem.towers
        lengths = draw.integers(recipe.length // 2, 2 * recipe.length, count * towers)  # type: ignore[attr-defined]
        if not problem.padded:
            lengths[:] = recipe.length  # type: ignore[attr-defined]
    elif isinstance(problem, Language):
        lengths = np.array([1_000_000])
    else:
        lengths = draw.integers(4, 40, count * towers)
    starts = np.append(0, lengths.cumsum()).astype(np.int64)
    tokens = draw.integers(4, min(problem.vocabulary, 250), starts[-1]).astype(np.uint16)
    labels = draw.integers(0, getattr(problem, "classes", 1), len(lengths) // towers)
    folder = Path(tempfile.mkdtemp())
    mapped = {}
    for name, array in (("tokens", tokens), ("starts", starts), ("labels", labels)):
        np.save(folder / f"{name}.npy", array)
        mapped[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    split = Split(**mapped, towers=towers)
    if isinstance(problem, Classification):
        train = split.all()
    elif isinstance(problem, Language):
        train = Windows.over(split, recipe.length, recipe.stride)  # type: ignore[attr-defined]
    else:
        train = SentencePairs(split=split, indices=np.arange(count))
    provenance = Provenance(source="random", fidelity="synthetic")
    few = train.spread(8)
    return Dataset(train=train, validation=few, test=few, provenance=provenance)


def measure(name: str) -> dict[str, float]:
    """Median seconds of a batch and of a step of training, in this process."""
    from dataclasses import replace

    import torch

    from attnbench.bench.core.errors import AttnbenchError
    from attnbench.bench.core.registry import TASKS as known
    from attnbench.bench.core.registry import VARIANTS
    from attnbench.bench.core.spec import Spec
    from attnbench.bench.train.objectives.registry import objective_for
    from attnbench.bench.train.trainer import Trainer
    from attnbench.tasks.data.data import place

    torch.set_num_threads(1)
    device = torch.device("cpu")
    task = known.build(known.resolve(Spec.parse(name)))
    random = 0

    def load(preset: str, **changes: object) -> tuple[object, object]:
        nonlocal random
        recipe = replace(task.recipe(Spec(preset)), validation_examples=8, test_examples=64, **changes)
        try:
            return recipe, task.load(place(offline=True, notice=lambda text: None), recipe, 0, "validation")
        except AttnbenchError:
            random = 1
            return recipe, random_dataset(task, recipe)

    recipe, dataset = load("pt-2x64" if "pt-2x64" in task.presets() else "base")
    feed = objective_for(task.problem(), recipe).feed(dataset.train, name, 0)
    batches = []
    for step in range(BATCHES):
        before = time.perf_counter()
        feed(step, device)
        batches.append(time.perf_counter() - before)
    recipe, dataset = load("quick", steps=STEPS, warmup=2, evaluate_every=10**9, learning_rates=())
    objective = objective_for(task.problem(), recipe)
    model = objective.model(lambda shape: VARIANTS.build(Spec("softmax"), shape), 0)
    at: list[float] = []
    trainer = Trainer(
        objective, model, dataset, task=name, seed=0, device=device,
        report=lambda training: at.append(time.perf_counter()),
    )  # fmt: skip
    trainer.run()
    # the first one warms up, the last one is followed by a validation
    steps = [after - before for before, after in itertools.pairwise(at[1:-1])]
    return {"batch": statistics.median(batches[5:]), "step": statistics.median(steps), "random": random}


def main(old: str, new: str, names: list[str]) -> None:
    print(f"{'task':18}{'batch ms':>16}{'ratio':>7}{'step ms':>18}{'new/old, median and range':>28}")
    for name in names or TASKS:
        found: dict[str, list[dict[str, float]]] = {old: [], new: []}
        for round_ in range(ROUNDS):
            for root in (old, new) if round_ % 2 == 0 else (new, old):
                answer = subprocess.run(
                    [sys.executable, __file__, "--one", name], check=True, capture_output=True, text=True,
                    env=os.environ | {"PYTHONPATH": root},
                ).stdout  # fmt: skip
                found[root].append(json.loads(answer))
        medians = {
            (root, what): 1e3 * statistics.median(each[what] for each in found[root])
            for root in (old, new)
            for what in ("batch", "step")
        }
        ratios = sorted(b["step"] / a["step"] for a, b in zip(found[old], found[new], strict=True))
        faster = medians[old, "batch"] / medians[new, "batch"]
        print(
            f"{name:18}{medians[old, 'batch']:>8.2f}{medians[new, 'batch']:>8.3f}{faster:>6.1f}×"
            f"{medians[old, 'step']:>9.1f}{medians[new, 'step']:>9.1f}"
            f"{statistics.median(ratios):>12.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            f"{'  random data' if found[new][0]['random'] else ''}",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
