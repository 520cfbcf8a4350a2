"""How long a Cell takes to start on prepared data, and whether batches come faster than a GPU takes them.

Run: python tests/perf/bench_input.py [TASK ...]     with ATTNBENCH_DATA set; tasks whose data is not here are left out

`load`: the task's data in a fresh process that prepared it before. `start`: that process from its first instruction to
its first batch, imports and model included. `batch`: one batch of `pt-2x64` from memory-mapped data, in a seeded order,
as tensors, on one thread; the median of its processor time, which other work on the machine moves little. `step`: a
training step of the fastest variant of Skyformer's table 2 on a V100, from its hours for 50,000 steps, at the batch of
`pt-2x64` (time taken as proportional to the batch). The GPU is never kept waiting while `batch` is below `step`, since
steps are queued without waiting for it; `head room` is their ratio, so a GPU that many times as fast as a V100 would
just be fed. Nothing is asserted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

HOURS = {"lra-text": 0.65, "lra-listops": 0.60, "lra-retrieval": 1.13, "lra-pathfinder": 1.09, "lra-image": 2.19}
"""Skyformer (Chen et al. 2021), table 2: Linformer, the fastest on every task."""

BATCHES = {"lra-text": 32, "lra-listops": 32, "lra-retrieval": 16, "lra-pathfinder": 128, "lra-image": 256}
STEPS = 50_000
ROUNDS = 60

# 200,000 images are minutes of work, and a tenth of them is read as fast
TASKS = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder[examples=20000]")


def measure(name: str) -> dict[str, float]:
    """What one fresh process sees; `started` is when it began."""
    started = time.time() - time.process_time()
    import torch

    from attnbench.bench.core.registry import TASKS, VARIANTS
    from attnbench.bench.core.spec import Spec
    from attnbench.bench.train.objectives.registry import objective_for
    from attnbench.tasks.data.data import place

    torch.set_num_threads(1)
    spec = TASKS.resolve(Spec.parse(name))
    task = TASKS.build(spec)
    recipe = task.recipe(Spec("pt-2x64"))
    before = time.perf_counter()
    dataset = task.load(place(offline=True, notice=lambda text: None), recipe, 0, "validation")
    load = time.perf_counter() - before
    kind = objective_for(task.problem(), recipe)
    kind.model(lambda shape: VARIANTS.build(Spec("softmax"), shape), 0)
    feed = kind.feed(dataset.train, str(spec), 0)
    feed(0, torch.device("cpu"))
    start = time.time() - started
    seconds = []
    for step in range(1, ROUNDS):
        before = time.process_time()
        feed(step, torch.device("cpu"))
        seconds.append(time.process_time() - before)
    return {"load": load, "start": start, "batch": statistics.median(seconds), "size": recipe.batch}


def main(names: list[str]) -> None:
    from attnbench.bench.core.errors import DataError
    from attnbench.bench.core.registry import TASKS as known
    from attnbench.bench.core.spec import Spec
    from attnbench.tasks.data.data import place

    print(
        f"{'task':34}{'load s':>8}{'start s':>9}{'batch':>7}{'batch ms':>10}{'1/s':>8}{'step ms':>9}{'head room':>11}"
    )
    for name in names or TASKS:
        task = known.build(known.resolve(Spec.parse(name)))
        try:
            task.load(place(offline=True), task.recipe(Spec("pt-2x64")), 0, "validation")
        except DataError as error:
            print(f"{name:34}left out: {str(error).partition(chr(10))[0]}")
            continue
        command = [sys.executable, __file__, "--one", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(answer)
        bare = name.partition("[")[0]
        step = HOURS[bare] * 3600 / STEPS * found["size"] / BATCHES[bare]
        print(
            f"{name:34}{found['load']:>8.2f}{found['start']:>9.2f}{found['size']:>7.0f}{1e3 * found['batch']:>10.2f}"
            f"{1 / found['batch']:>8.0f}{1e3 * step:>9.0f}{step / found['batch']:>10.0f}×"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
