"""Time of a batch and of a training step in two versions of attnbench, by processes that take turns.

Run: python tools/training_loop.py OLD NEW [TASK ...]     OLD, NEW: folders that hold a folder `attnbench`
     python tools/training_loop.py --captured TASK VARIANT ...     on a GPU: steps with and without a CUDA graph

With --captured each variant is trained for ATTNBENCH_STEPS steps at `pt-2x64`, once as CUDA graphs and once without, by
its own `Trainer`. A line gives milliseconds of a step, those of the host in it, the share of replays or why there are
none, whether the losses have the same bits, and seconds of a validation. What fails for one variant is its line.

Otherwise both train softmax on one thread at the task's preset `quick`, by its own `Trainer`, with the time of each
step taken where it reports, on the wall and of the processor, which other work on the machine lengthens less; a batch
is that of `pt-2x64`, or of `base` where there is none. Data are those of ATTNBENCH_DATA where it has them, otherwise
random ones of the same shape, in memory maps as real ones are. A round is one process of each version, in an order that
turns round; a ratio is that of the medians of a round, and shown are the median ratio, the smallest and the largest.
Under load only large differences show, so that what a step does is counted too: whether its operators and the shapes of
their tensors are the same, and its calls of Python. ATTNBENCH_ROUNDS: how many rounds. Nothing is asserted.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROUNDS, STEPS, BATCHES = int(os.environ.get("ATTNBENCH_ROUNDS", "5")), 30, 60
CAPTURED_STEPS, CAPTURED_FROM = int(os.environ.get("ATTNBENCH_STEPS", "200")), 20
COUNTED = 6

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


def count(train: Callable[[Callable[[object], None]], None]) -> tuple[int, list[object]]:
    """Calls of Python, and operators with the shapes of their tensors in any order, of the last step but one.

    `train` trains with what it is given as its report of each step.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            ran.append((str(operator), [tuple(x.shape) for x in args if hasattr(x, "shape")]))
            return operator(*args, **(kwargs or {}))

    ran: list[object] = []
    starts: list[int] = []
    with Operators():
        train(lambda training: starts.append(len(ran)))
    operators = sorted(ran[starts[-3] : starts[-2]], key=repr)
    calls = 0

    def on_event(frame: object, event: str, value: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    starts.clear()
    try:
        sys.setprofile(on_event)
        train(lambda training: starts.append(calls))
    finally:
        sys.setprofile(None)
    return starts[-2] - starts[-3], operators


def measure(name: str) -> dict[str, object]:
    """Median seconds of a batch and of a step of training, in this process, and what a step does."""
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

    def train(report: Callable[[object], None], steps: int = COUNTED) -> None:
        objective = objective_for(task.problem(), replace(recipe, steps=steps))
        model = objective.model(lambda shape: VARIANTS.build(Spec("softmax"), shape), 0)
        Trainer(objective, model, dataset, task=name, seed=0, device=device, report=report).run()

    at: list[tuple[float, float]] = []
    train(lambda training: at.append((time.perf_counter(), time.process_time())), STEPS)
    # the first one warms up, the last one is followed by a validation
    steps, worked = (
        [after[clock] - before[clock] for before, after in itertools.pairwise(at[1:-1])] for clock in (0, 1)
    )
    calls, operators = count(train)
    return {
        "batch": statistics.median(batches[5:]), "step": statistics.median(steps),
        "processor": statistics.median(worked), "random": random, "calls": calls, "operators": operators,
    }  # fmt: skip


def compare_captured(name: str, variants: list[str]) -> None:
    """Trains each variant with and without a CUDA graph, on the first GPU or, to try this code, on the CPU."""
    # as workers train
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    from attnbench.bench.core.registry import TASKS as known
    from attnbench.bench.core.spec import Spec
    from attnbench.tasks.data.data import place

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    task = known.build(known.resolve(Spec.parse(name)))
    preset = f"pt-2x64[steps={CAPTURED_STEPS},evaluate_every={CAPTURED_STEPS // 2}]"
    recipe = task.recipe(Spec("pt-2x64")).with_overrides(Spec.parse(preset))
    dataset = task.load(place(offline=False, notice=print), recipe, 0, "validation")
    for variant in variants:
        try:
            steps = [train_once(task, recipe, dataset, variant, device, graphs) for graphs in (True, False)]
        except Exception as error:
            print(f"{variant:16} {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        told = [f"{each['ms']:7.2f} ms, host {each['host']:6.2f} ms" for each in steps]
        same = "the same bits" if steps[0]["losses"] == steps[1]["losses"] else f"OTHER: {[s['losses'] for s in steps]}"
        print(
            f"{variant:16} {steps[0]['graphs']}: {told[0]}; ordinary: {told[1]}; losses {same}; "
            f"validation {steps[0]['validation']:.2f} s; ran as {steps[0]['ran']}",
            flush=True,
        )


def train_once(task: Any, recipe: Any, dataset: Any, variant: str, device: Any, graphs: bool) -> dict[str, Any]:
    import torch

    from attnbench.bench.train import captured_step
    from attnbench.bench.train.objectives.registry import objective_for
    from attnbench.bench.train.trainer import Trainer
    from attnbench.variants import build

    captured_step.MOST_PARAMETERS = 50_000_000 if graphs else 0
    objective = objective_for(task.problem(), recipe)
    model = objective.model(lambda shape: build(variant, shape), 0, str(device)).to(device)
    at: dict[int, tuple[float, float]] = {}

    def mark(training: Any) -> None:
        # at the end of the first stretch and before the first validation
        if training.step in (CAPTURED_FROM, CAPTURED_STEPS // 2 - 1):
            if device.type == "cuda":
                torch.cuda.synchronize()
            at[training.step] = time.perf_counter(), training.host_seconds

    trainer = Trainer(objective, model, dataset, task=task.name, seed=0, device=device, report=mark)
    training = trainer.run()
    (begun, before), (ended, after) = at.values()
    count = CAPTURED_STEPS // 2 - 1 - CAPTURED_FROM
    started = time.perf_counter()
    objective.evaluate(model, dataset.validation, device)
    return {
        "ms": 1e3 * (ended - begun) / count, "host": 1e3 * (after - before) / count,
        "validation": time.perf_counter() - started, "ran": model.variants[0].implementation,
        "graphs": trainer.uncaptured or f"graphs {training.replays / training.step:.0%}",
        "losses": [(point.train_loss, point.validation_loss) for point in training.curve],
    }  # fmt: skip


def work(old: dict[str, Any], new: dict[str, Any]) -> str:
    same = "the same" if old["operators"] == new["operators"] else "OTHER"
    return f"{same} operators, {old['calls']:,} and {new['calls']:,} calls"


def main(old: str, new: str, names: list[str]) -> None:
    print(
        f"{'task':18}{'batch ms':>16}{'ratio':>7}{'step ms':>18}{'new/old, median and range':>28}{'processor':>24}"
        "   a step's work"
    )
    for name in names or TASKS:
        found: dict[str, list[dict[str, Any]]] = {old: [], new: []}
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
        wall, processor = (
            sorted(b[what] / a[what] for a, b in zip(found[old], found[new], strict=True))
            for what in ("step", "processor")
        )
        faster = medians[old, "batch"] / medians[new, "batch"]
        print(
            f"{name:18}{medians[old, 'batch']:>8.2f}{medians[new, 'batch']:>8.3f}{faster:>6.1f}×"
            f"{medians[old, 'step']:>9.1f}{medians[new, 'step']:>9.1f}"
            f"{statistics.median(wall):>12.3f} ({wall[0]:.3f} to {wall[-1]:.3f})"
            f"{statistics.median(processor):>8.3f} ({processor[0]:.3f} to {processor[-1]:.3f})"
            f"   {work(found[old][0], found[new][0])}"
            f"{'  random data' if found[new][0]['random'] else ''}",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    elif sys.argv[1:2] == ["--captured"]:
        compare_captured(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
