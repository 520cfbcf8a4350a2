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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..core.errors import SelectionError
from ..core.paths import RESULTS
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Names, Spec, bytes_of, specs_of
from ..process.ask import asking

if TYPE_CHECKING:
    from ..plan.planner import Plan
    from ..run.events import RunListener
    from ..run.executors.engines import RunStatus
    from ..run.executors.executor import Executor
    from ..run.runner import Runner
    from ..store.records import Records


class RunOptions(TypedDict, total=False):
    """Options of `run` and `plan`, beside variants and tasks.

    suite: a built-in suite or a FILE.toml, which the other options change. preset: such as `quick[steps=100]`. seeds:
    how many. selection: split that chooses the checkpoint, `validation` or `test`. lanes: only these of
    `baseline,tune,train,time`. match_parameters: give every model the size of softmax's, by its feed-forward.
    memory_budget: bytes or `2GiB`; also find the longest sequence that a sweep's variants run in so much. device:
    `cpu`, `cuda`, `cuda:1`. results: folder of the Records. data_dir: folder of original data. offline: never download.
    retry: run failed cells again. timeout: seconds that a cell may take. threads: of the processor for each job, 0 for
    its share of the cores. jobs: how many run at once; None leaves it to the executor. executor_options: of the
    executor, such as `{"partition": "gpu", "time": "2h"}`.
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
    from ..run.events import LoggingListener

    listener = progress or LoggingListener()
    with asking():
        return _runner(variants, tasks, listener, executor, **options).run_all(listener)


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
    from ..run.events import LoggingListener

    with asking():
        made = _runner(variants, tasks, progress or LoggingListener(), executor, only_plans=True, **options)
        return made.plan()


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
            "the name of its file: `mine.py:MyAttention` in check, probe, run and audit"
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
    progress: RunListener,
    executor: Executor | str | None = None,
    *,
    suite: str | None = None,
    preset: str | Spec | None = None,
    seeds: int | None = None,
    selection: str | None = None,
    match_parameters: bool = False,
    memory_budget: str | int | None = None,
    lanes: str | Iterable[str] | None = None,
    results: str | Path = RESULTS,
    data_dir: str | Path | None = None,
    jobs: int | None = None,
    executor_options: Mapping[str, Any] | None = None,
    only_plans: bool = False,
    **others: Any,
) -> Runner:
    from ..plan.suite import suite_with, with_longest
    from ..run.runner import Runner, RunRequest

    named = (None if names is None else specs_of(names) for names in (variants, tasks))
    asked = suite_with(suite, *named, preset=preset, seeds=seeds, selection=selection, matched=match_parameters)
    if memory_budget is not None:
        asked = replace(asked, tasks=with_longest(asked.tasks, int(bytes_of(str(memory_budget)))))
    if lanes is not None:
        others["lanes"] = tuple(lane.strip() for lane in (lanes.split(",") if isinstance(lanes, str) else lanes))
    folder = None if data_dir is None else Path(data_dir)
    name = executor if isinstance(executor, str) else None
    settings = asked.executor
    if name is not None or jobs is not None or executor_options:
        settings = settings.changed(name, jobs, executor_options)
    request = RunRequest(suite=asked, results=Path(results), data_dir=folder, executor=settings, **others)
    return Runner(
        request=request,
        on_warning=progress.notice,
        on_progress=progress.progress,
        executor=None if isinstance(executor, str) else executor,
        only_plans=only_plans,
    )
