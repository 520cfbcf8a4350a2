"""Run or plan a selection from Python, and see how its jobs stand.

    import attnbench

    found = attnbench.run("rela,entmax15", "lra-text", preset="smoke")
    for board in attnbench.boards(found):
        print(board.to_pandas())

A variant or task is named by text, `local[flange=64]`, or by a `Spec`; several by a comma-separated text or a list. All
functions raise `AttnbenchError` (see `bench/core/errors.py`) for a mistake that its message explains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..core.errors import SelectionError
from ..core.files import RESULTS
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Names, Spec
from ..process.ask import asking

if TYPE_CHECKING:
    from ..plan.planner import Plan
    from ..run.events import RunListener
    from ..run.executors.engines import RunStatus
    from ..run.executors.executor import Executor
    from ..run.runner import Runner
    from ..store.records import Records


class RunOptions(TypedDict, total=False):
    """The keywords of `run` and `plan`, which become `Options` (`bench/plan/options.py`, which explains the others).

    suite: a built-in suite or a FILE.toml, which the other options change. lanes: only these of
    `baseline,tune,train,time`. even_if_wrong: measure what the correctness checks find wrong too; its Records stay
    `incorrect`, and no board shows their numbers. match_parameters: give every model the size of softmax's, by its
    feed-forward. memory_budget: bytes or `2GiB`; also find the longest sequence that a sweep's variants run in so much.
    jobs: how many run at once; None leaves it to the executor. executor_options: of the executor, such as
    `{"partition": "gpu", "time": "2h"}`.
    """

    suite: str | None
    preset: str | Spec | None
    seeds: int | None
    selection: str | None
    lanes: str | Iterable[str] | None
    match_parameters: bool
    memory_budget: str | int | None
    device: str | None
    results: str | Path
    data_dir: str | Path | None
    offline: bool
    retry: bool
    even_if_wrong: bool
    timeout: float | None
    threads: int
    jobs: int | None
    executor_options: Mapping[str, Any]


def run(
    variants: Names | None = None,
    tasks: Names | None = None,
    *,
    progress: RunListener | None = None,
    executor: Executor | str | None = None,
    **options: Unpack[RunOptions],
) -> Records:
    """Train and measure `variants` on `tasks`; what is measured already is not run again.

    options: see `RunOptions`. progress: is told what happens; the logger `attnbench` where it is None.
    executor: where jobs run: `local`, `slurm`, `ray` or one of your own; None for that of the suite, else `local`.
    Returns the Records of the whole selection, softmax and the baselines among them; a failure is a Record with its
    outcome, not an exception. Raises SelectionError for a name or value that is none, DataError where a task has no
    data, DeviceError for a device that this machine lacks, StoreError for a folder that cannot be written.

    >>> found = attnbench.run("rela,entmax15", "lra-text", preset="smoke")                         # doctest: +SKIP
    """
    with asking():
        return _runner(variants, tasks, progress, executor, **options).run_all()


def plan(
    variants: Names | None = None,
    tasks: Names | None = None,
    *,
    progress: RunListener | None = None,
    executor: str | None = None,
    **options: Unpack[RunOptions],
) -> Plan:
    """The cells that `run` would run with the same arguments, what is done already, and what the rest may cost.

    Nothing is downloaded, prepared or measured, and a GPU that is asked for need not be here: the time of cells that
    none like it has run of is estimated from their counted work. Raises as `run`, but no DataError.

    >>> [str(step.cell) for step in attnbench.plan("rela", "lra-text").left]                       # doctest: +SKIP
    """
    with asking():
        return _runner(variants, tasks, progress, executor, only_plans=True, **options).plan()


def status(results: str | Path = RESULTS) -> RunStatus:
    """The jobs of the last run, queued, running and ended; nothing is asked of any engine."""
    from ..run.executors.engines import status_of

    return status_of(Path(results))


def register(name: str, target: type) -> None:
    """Give a variant or task of a script a name, for this process and the workers that it starts.

    target: a class at the top level of a file, or what `score_map` makes there. Workers import that file again, so what
    a script runs stands under `if __name__ == "__main__":`. A package declares an entry point instead; `attnbench new`
    writes one. Raises SelectionError for what is neither, for a class that workers cannot import, and a taken name.

    >>> attnbench.register("my-floor", Floor); attnbench.run("my-floor", "lra-text")               # doctest: +SKIP
    """
    from ...tasks.contract import Task
    from ...variants.contract import Variant

    if not (isinstance(target, type) and issubclass(target, Task | Variant)):
        what = f"the class {target.__name__}" if isinstance(target, type) else f"a {type(target).__name__}"
        raise SelectionError(
            f"expected a Variant, a Task or what score_map makes, got {what}; any module or function runs as it is, by "
            "the name of its file: `mine.py:MyAttention` in judge, audit, check and run"
        )
    module, file = target.__module__, getattr(sys.modules[target.__module__], "__file__", None)
    if file is None or "<locals>" in target.__qualname__:
        raise SelectionError(f"expected {target.__qualname__} at the top level of a file, which workers can import")
    path = Path(file).resolve()
    if module == "__main__":
        module = path.stem
    top = path.parents[module.count(".") + (path.name == "__init__.py")]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(top) not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, str(top)]))
    registry = TASKS if issubclass(target, Task) else VARIANTS
    registry.declare(name, f"{module}:{target.__qualname__}")


def _runner(
    variants: Names | None,
    tasks: Names | None,
    listener: RunListener | None,
    executor: Executor | str | None,
    *,
    only_plans: bool = False,
    **options: Any,
) -> Runner:
    from ..plan.options import options_of
    from ..run.events import LoggingListener
    from ..run.runner import Runner

    named, own = (executor, None) if isinstance(executor, str) else (None, executor)
    return Runner(
        options=options_of(variants, tasks, executor=named, **options),
        listener=listener or LoggingListener(),
        executor=own,
        only_plans=only_plans,
    )
