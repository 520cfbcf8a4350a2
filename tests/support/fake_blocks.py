"""Jobs without training, for executors that start processes of their own: `fake_worker.py` answers there.

Importing this module makes jobs of this process fake. Processes of submitit and Ray import it because what they
unpickle is defined here.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from attnbench.bench.core.record import Machine
from attnbench.bench.plan.options import options_of
from attnbench.bench.run.executors import local
from attnbench.bench.run.executors.run_job import run_job
from attnbench.bench.wings.clusters import node, slurm
from attnbench.bench.wings.clusters import ray as ray_executor

WORKER = Path(__file__).with_name("fake_worker.py")
MACHINE = Machine(id="fake", system="s", processor="p", cores=2, threads=1, memory_bytes=2**30)

for module in (local, node):
    module.run_job = functools.partial(run_job, target=str(WORKER))  # type: ignore[attr-defined]
for module in (slurm, ray_executor):
    module.describe_node = lambda job: MACHINE  # type: ignore[attr-defined]
    module.prepare_data = lambda job, files: None  # type: ignore[attr-defined]


class RunJob(slurm.RunJob):
    """Unpickled on a node, it makes its jobs fake."""


def run_on_ray(line: bytes, token: str) -> Any:
    """The same for Ray; a token that is not there stands for a folder that is not shared."""
    return ray_executor.run_on_ray(line, token)


def run_without_sharing(line: bytes, token: str) -> Any:
    return ray_executor.run_on_ray(line, "not-there")


def runner(results: Path, variants: str, executor: str, jobs: int = 1, share: bool = True, **options: Any) -> Any:
    """A Runner of fake jobs: one Cell to train for each variant."""
    from attnbench.bench.run.events import RunListener
    from attnbench.bench.run.questions import FindData
    from attnbench.bench.run.runner import Runner

    class Listener(RunListener):
        def notice(self, message: str) -> None:
            print("warning:", message, flush=True)

    slurm.RunJob = RunJob  # type: ignore[misc]
    slurm.ASK_SECONDS = 0.5
    ray_executor.run_on_ray = run_on_ray if share else run_without_sharing
    FindData.answer = lambda find, reporter: None  # type: ignore[method-assign]
    timeout = float(options.pop("timeout")) if "timeout" in options else None
    chosen = options_of(
        variants, "lra-listops", preset="smoke", results=results, device="cpu", threads=1, lanes="train",
        timeout=timeout, executor=executor, jobs=jobs, executor_options=options,
    )  # fmt: skip
    return Runner(options=chosen, listener=Listener())


def drive(found: Any) -> None:
    """As `attnbench run` does it."""
    found.run(found.plan(fetch=True))


if __name__ == "__main__":
    # a driver that a test may kill: RESULTS VARIANTS EXECUTOR JOBS KEY=VALUE…
    import fake_blocks

    results, variants, executor, jobs, *rest = sys.argv[1:]
    fake_blocks.drive(
        fake_blocks.runner(Path(results), variants, executor, int(jobs), **dict(each.split("=") for each in rest))
    )
