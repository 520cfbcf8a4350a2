"""The Python interface: what the command line does, as functions that return Records, Boards and reports.

    import attnbench

    found = attnbench.run("rela,entmax15", "lra-text", preset="smoke")
    for board in attnbench.boards(found):
        print(board.to_pandas())

Every command of `attnbench` parses its options, calls one of these functions and prints the result. A variant or task
is named by text, `local[flange=64]`, or by a `Spec`; several by a comma-separated text or a list. All functions raise
`AttnbenchError` (see `bench/core/errors.py`) for a mistake that its message explains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from .core.errors import AttnbenchError as AttnbenchError
from .core.errors import PluginError, SelectionError
from .core.log import LOG
from .core.registry import TASKS, VARIANTS
from .core.spec import Spec, bytes_of, parse_selection
from .process.ask import ask, asking
from .store.records import Records
from .wings.audit.examine import audit as audit

if TYPE_CHECKING:
    from .board.board import Board
    from .board.compare import Comparison
    from .board.filters import Filters
    from .board.regression import Change
    from .board.report import Overview, Report
    from .gate.report import CheckReport
    from .gate.variant import VariantSource
    from .plan.planner import Plan
    from .run.events import RunListener
    from .run.executors.executor import Executor
    from .run.runner import Runner
    from .run.status import RunStatus
    from .score.cost import Mode
    from .score.key import BoardKey
    from .store.artifacts import StoredPredictions
    from .store.table import ResultTable
    from .wings.probe.page import ProbeReport

RESULTS = Path("results/local")
"""The results folder where none is named, below the current folder."""

Notice = Callable[[str], None]

Names = str | Spec | Iterable[str | Spec]


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
    from .run.events import LoggingListener

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
    from .run.events import LoggingListener

    with asking():
        made = _runner(variants, tasks, progress or LoggingListener(), executor, only_plans=True, **options)
        return made.plan()


def status(results: str | Path = RESULTS) -> RunStatus:
    """What the last run has queued, what runs and where, and what has ended; nothing is asked of any engine."""
    from .run.status import status_of

    return status_of(Path(results))


def records(results: str | Path = RESULTS, *, notice: Notice = LOG.warning) -> Records:
    """All Records of a results folder in the order of arrival; empty where there is no folder.

    notice: is told of lines that cannot be read, which are left out.
    """
    from .store.store import Store

    return Records(results=Path(results), records=tuple(Store(Path(results), notice).records()))


def boards(
    results: str | Path | Records = RESULTS,
    *,
    suite: str | None = None,
    lengths: bool = False,
    mode: Mode | None = None,
    margin: float | None = None,
    published: bool = False,
    history: bool = False,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Board]:
    """The boards of a results folder, or those that the Records of a run answer: one for each task and preset.

    suite: average over the tasks of this suite instead. lengths: only cost over lengths. mode: `step`, `forward` or
    `decode`, of boards of cost alone. margin: points worse than the reference that still count as no worse; None for
    each task's own. published: what papers reported beside ours, never ranked with it. history: of each board only
    when its numbers were measured and by which code. filters: see `Filters`.
    Raises StoreError where the folder has no Records, SelectionError where the filters leave none.

    >>> print(attnbench.boards("results", task="lra-text")[0].to_pandas())                         # doctest: +SKIP
    """
    from .board.history import board_of_history
    from .board.published import with_published
    from .board.select import scored
    from .plan.suite import load_suite

    table, predictions, keys = _answered(results, notice, filters)
    if history:
        return [board_of_history(table, key) for key in keys]
    declared = None if suite is None else load_suite(suite).declaration
    found = scored(table, predictions, keys, margin, suite=declared, lengths=lengths, mode=mode)
    return with_published(found, suite) if published else found


def reports(
    results: str | Path | Records = RESULTS,
    *,
    suite: str | None = None,
    margin: float | None = None,
    published: bool = False,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Report]:
    """As `boards`, each with its figures: what a page shows of it.

    suite: first the average over the tasks of this suite with a picture of all, then its tasks alone. Without it, the
    average of each built-in suite whose tasks are all there comes before them.
    """
    from .board.published import reports_with_published
    from .board.select_reports import scored_reports
    from .plan.suite import built_in, load_suite

    table, predictions, keys = _answered(results, notice, filters)
    only = None if suite is None else load_suite(suite).declaration
    known = [load_suite(name).declaration for name in built_in()]
    found = scored_reports(table, predictions, keys, margin, suite=only, known=known)
    return reports_with_published(found) if published else found


def overview(reports: Sequence[Report]) -> Overview:
    """What a page of these reports opens with: who leads each board, and pictures of all tasks."""
    from .board.overview import overview_of

    return overview_of(reports)


def compare(
    one: str,
    other: str = "softmax",
    results: str | Path | Records = RESULTS,
    *,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Comparison]:
    """How two variants differ on each board that has both, with intervals and in words.

    Raises SelectionError where no board has both.
    """
    from .board.compare import compare_on_boards

    table, predictions, keys = _answered(results, notice, filters)
    return compare_on_boards(table, keys, one, other, predictions, margin)


def changes(results: str | Path | Records, against: str | Path, notice: Notice = LOG.warning) -> list[Change]:
    """How each cost over softmax differs from that in an older folder, the slowest first; SelectionError for none."""
    from .board.regression import changes_since

    return changes_since(*(_answered(each, notice, {})[::2] for each in (results, against)))


def choose(
    length: int | str,
    results: str | Path | Records = RESULTS,
    *,
    mode: Mode = "step",
    memory: str | int | None = None,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> Board:
    """The variants that fit a length, a memory and a loss of quality, by cost; the others with the reason.

    length: tokens, or text such as `16k`, which is 16,384. memory: bytes, or text such as `40GB`, that a training step,
    or decoding one sequence, may hold. Raises SelectionError where nothing was timed at that length.
    """
    from .score.key import BoardFilter, board_keys
    from .wings.choose.choose_board import Requirements, board_for_choice, tokens_of

    limit = None if memory is None else bytes_of(str(memory))
    # a machine is asked for its speeds; quality may come from any
    table, predictions, keys = _answered(results, notice, {**filters, "machine": None})
    every = board_keys(table, BoardFilter(fidelity=filters.get("fidelity"), machine=filters.get("machine")))
    wanted = Requirements(length=tokens_of(length), mode=mode, memory_bytes=limit, margin=margin)
    return board_for_choice(table, keys, wanted, predictions, every, predictions.store.root)


def lengths_to_choose_at(
    results: str | Path | Records = RESULTS, *, notice: Notice = LOG.warning, **filters: Unpack[Filters]
) -> dict[Mode, list[int]]:
    """The lengths that `choose` can answer for, by mode; empty where nothing was timed."""
    from .score.key import BoardFilter, board_keys
    from .wings.choose.choose_board import lengths_timed

    table, _, _ = _answered(results, notice, {**filters, "machine": None})
    wanted = BoardFilter(fidelity=filters.get("fidelity"), machine=filters.get("machine"))
    return lengths_timed(table, board_keys(table, wanted))


def check(
    variant: VariantSource | Callable[..., Any],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    **arguments: Any,
) -> CheckReport:
    """Test what a variant promises: causality, padding, gradients, precision, decoding.

    variant: a name, such as `rela` or `mine.py:MyAttention[heads=4]`, a Spec, a class of the contract, or a function
    from an AttentionShape to a variant; or anybody's module, its class with `arguments`, or a function of query, key
    and value: these run in this process. device: `cpu` or `cuda`. dtype: `float32`, `bfloat16` or `float16`. Returns a
    report that is true where no property fails; its `problem` says why a variant does not build, and its `note` how
    foreign code is called. Raises SelectionError for text that names none and for another dtype, DeviceError for a
    device that this machine lacks.

    >>> report = attnbench.check("rela")                                                           # doctest: +SKIP
    >>> assert report, report.failures                                                             # doctest: +SKIP
    """
    from .gate.report import CheckReport
    from .plan.facts import resolve
    from .run.questions import CHECK_PATIENCE, CheckVariant

    if not isinstance(variant, str | Spec):
        from .wings.audit.examine import examined_here

        return examined_here(variant, arguments, device, dtype)
    spec = Spec.parse(variant) if isinstance(variant, str) else variant
    with asking():
        try:
            spec = resolve(VARIANTS, spec)
            return ask(VARIANTS, spec.name, CheckVariant(spec, device, dtype), patience=CHECK_PATIENCE)
        except PluginError as error:
            return CheckReport(name=str(spec), results=(), seconds=0.0, problem=error.reason)


def probe(
    variant: Names,
    *,
    preset: str | Spec = "quick",
    results: str | Path = RESULTS,
    device: str | None = None,
    threads: int = 0,
    timeout: float | None = None,
    retry: bool = False,
    progress: RunListener | None = None,
) -> ProbeReport:
    """What a new variant can do, in minutes: the gate, three synthetic tasks, the cost at three lengths.

    Each task is trained once, by seed 0 at the preset's own learning rate, beside softmax; nothing is run twice, and
    nothing where the gate fails. A variant without a causal form is probed on `max-pooled` alone. preset: `quick` or
    `smoke`, with changes such as `quick[steps=200]`. Variants of like behaviour are looked for in `results` and in the
    folder `results` here. For the rest see `RunOptions`. Raises as `run`.

    >>> print(attnbench.probe("entmax15").headline)                                                # doctest: +SKIP
    """
    from .store.table import table_of
    from .wings.probe.page import page_of
    from .wings.probe.run_probe import run_probe

    told = partial(run, results=results, device=device, threads=threads, timeout=timeout, retry=retry, seeds=1)
    notice, told = progress.notice if progress else LOG.warning, partial(told, progress=progress)
    with asking():
        done = run_probe(specs_of(variant), preset, device, check=check, run=told, notice=notice)
    tables = [table_of(records(each, notice=notice)) for each in dict.fromkeys([Path(results), Path("results")])]
    return page_of(str(done.variant), done.examined, done.trained, done.beside, done.timed, tables)


def register(name: str, target: type) -> None:
    """Give a variant or task of a script a name, for this process and the workers that it starts.

    target: a class at the top level of a file, or what `score_map` makes there. Workers import that file again, so what
    a script runs stands under `if __name__ == "__main__":`. A package declares an entry point instead; `attnbench new`
    writes one. Raises SelectionError for what is neither, for a class that workers cannot import, and a taken name.

    >>> attnbench.register("my-floor", Floor); attnbench.run("my-floor", "lra-text")               # doctest: +SKIP
    """
    from ..tasks.contract import Task
    from ..variants.contract import Variant

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


def specs_of(names: Names) -> tuple[Spec, ...]:
    """The Specs that text, a Spec or a list of both names, in order; raises SelectionError for text that is no name.

    >>> [str(spec) for spec in specs_of(["rela", "local[flange=64,128]"])]
    ['rela', 'local[flange=64]', 'local[flange=128]']
    """
    listed = [names] if isinstance(names, str | Spec) else names
    return tuple(spec for name in listed for spec in ([name] if isinstance(name, Spec) else parse_selection(name)))


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
    from .plan.suite import suite_with, with_longest
    from .run.runner import Runner, RunRequest

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


def _answered(
    results: str | Path | Records, notice: Notice, filters: Filters
) -> tuple[ResultTable, StoredPredictions, list[BoardKey]]:
    """The whole folder, and the boards of it that are asked for: of Records those that they answer."""
    from .board.select import read_store
    from .score.key import BoardFilter, answering, board_keys
    from .store.store import Store

    table, predictions = read_store(Store(results.results if isinstance(results, Records) else Path(results), notice))
    keys = board_keys(table, BoardFilter(**filters))
    return table, predictions, answering(keys, results) if isinstance(results, Records) else keys
